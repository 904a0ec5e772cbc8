#pragma once
// What a rank of this node called last, for the others to read while they wait for it: it may be elsewhere in its
// program.
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "comm/backend/operation.h"

namespace tutti::comm {

/// One writer, any readers, in any processes that map it. Zero-initialized memory is a valid one. Read while it is
/// written it may tell half of two calls: it is for people.
class LastOperation {
 public:
  void set(const Operation& operation);
  /// "barrier 'epoch' (operation 16, train.cpp:42), 11 s ago"; "none" where there was none.
  std::string describe(Deadline now) const;

 private:
  static constexpr std::size_t word_count = 18;
  static constexpr std::size_t file_offset = 96;
  using Text = std::array<char, word_count * sizeof(std::uint64_t)>;

  std::array<std::atomic<std::uint64_t>, word_count> text_;  // what and name, then the file, each with a zero behind
  std::atomic<int> line_;
  std::atomic<std::uint64_t> number_;
  std::atomic<std::int64_t> started_at_;  // of the steady clock, which all processes of a machine share
};

}  // namespace tutti::comm
