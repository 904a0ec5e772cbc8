#include "comm/describe_call.h"

#include <array>

#include "tutti/core/error.h"

namespace tutti::comm {

std::string describe_op(ReduceOp op) {
  constexpr std::array names{"sum", "mean", "min", "max", "product", "bit_and", "bit_or", "bit_xor"};
  static_assert(names.size() == static_cast<std::size_t>(ReduceOp::bit_xor) + 1);
  return names.at(static_cast<std::size_t>(op));
}

void require_rank(int rank, int size, const char* what) {
  if (rank >= 0 && rank < size) return;
  throw UsageError(std::string(what) + ": root " + std::to_string(rank) + " is not a rank of this group of " +
                   std::to_string(size) + ".");
}

}  // namespace tutti::comm
