#pragma once
// The last call of a rank, readable by the other ranks of its node. A rank that waits reports it, because the awaited
// rank may be in another part of its program.
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "comm/backend/operation.h"

namespace tutti::comm {

/// Has one writer and any number of readers, in any processes that map it. Zero-initialized memory is a valid object. A
/// read during a write may mix two calls, so the text is for messages only.
class LastOperation {
 public:
  void set(const Operation& operation);
  /// "barrier 'epoch' (operation 16, train.cpp:42), 11 s ago"; "none" before the first call.
  std::string describe(Deadline now) const;

 private:
  static constexpr std::size_t word_count = 18;
  static constexpr std::size_t file_offset = 96;
  using Text = std::array<char, word_count * sizeof(std::uint64_t)>;

  std::array<std::atomic<std::uint64_t>, word_count> text_;  // op_name and name, then the file, zero-terminated
  std::atomic<int> line_;
  std::atomic<std::uint64_t> number_;
  std::atomic<std::int64_t> started_at_;  // of the steady clock, which all processes of a machine share
};

}  // namespace tutti::comm
