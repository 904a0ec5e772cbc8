#include "comm/describe_call.h"

#include "tutti/core/error.h"

namespace tutti::comm {

std::span<const std::byte> bytes_of(const at::Tensor& memory) {
  return {static_cast<const std::byte*>(memory.const_data_ptr()), memory.nbytes()};
}

std::string describe_op(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum:
      return "sum";
    case ReduceOp::mean:
      return "mean";
    case ReduceOp::min:
      return "min";
    case ReduceOp::max:
      return "max";
    case ReduceOp::product:
      return "product";
    case ReduceOp::bit_and:
      return "bit_and";
    case ReduceOp::bit_or:
      return "bit_or";
    case ReduceOp::bit_xor:
      return "bit_xor";
  }
  return "?";
}

void require_rank(int rank, int size, const char* what) {
  if (rank >= 0 && rank < size) return;
  throw UsageError(std::string(what) + ": root " + std::to_string(rank) + " is not a rank of this group of " +
                   std::to_string(size) + ".");
}

}  // namespace tutti::comm
