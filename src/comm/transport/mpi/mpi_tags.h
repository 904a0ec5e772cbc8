#pragma once
// From tutti's tags to MPI's, whose range differs between libraries: 15 bits are promised, most have 20 to 31.
#include <cstddef>
#include <string>

#include "comm/transport/transport.h"

namespace tutti::comm {

/// A tag holds the operation's number as far as it fits, the phase, and a hash of the message's length: what does not
/// fit does not meet. Pure.
class MpiTags {
 public:
  /// `highest` as MPI_TAG_UB says.
  explicit MpiTags(int highest);
  int message(Tag tag, std::size_t length) const;
  /// Of the message by which a rank leaves; no other has it.
  int close() const;
  /// For making a group.
  int of_name(const std::string& name) const;

 private:
  int bits_;
  int hash_bits_;
};

}  // namespace tutti::comm
