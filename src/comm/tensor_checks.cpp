#include "comm/tensor_checks.h"

#include <ATen/core/LegacyTypeDispatch.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "comm/backend/describe.h"
#include "device/devices.h"
#include "device/host_copy.h"
#include "tutti/core/error.h"

namespace tutti::comm {
namespace {

void require_same_dtype(const char* what, const at::Tensor& output, const at::Tensor& input) {
  if (output.scalar_type() == input.scalar_type()) return;
  throw UsageError(std::string(what) + ": output is " + describe_tensor(output) + ", input " + describe_tensor(input) +
                   "; they must have the same dtype.");
}

// Returns the plain memory of `tensor` if that is owned, else a copy. Ownership matters because transfers in flight may
// access the memory after a failed call. A tensor of at::from_blob() without a deleter does not own its memory.
at::Tensor plain_and_kept(const at::Tensor& tensor) {
  const auto flat = plain_memory(tensor);
  const bool is_kept = flat.nbytes() == 0 || flat.storage().data_ptr().get_context() != nullptr;
  return is_kept ? flat : flat.clone();
}

// Whether two elements may have the same place in memory, as after expand() or unfold().
bool elements_may_overlap(const at::Tensor& tensor) {
  if (tensor.numel() == 0 || tensor.is_non_overlapping_and_dense()) return false;
  std::vector<std::pair<std::int64_t, std::int64_t>> dimensions;  // stride, size
  for (std::int64_t i = 0; i < tensor.dim(); ++i) {
    if (tensor.size(i) > 1) dimensions.emplace_back(tensor.stride(i), tensor.size(i));
  }
  std::ranges::sort(dimensions);
  std::int64_t last = 0;  // the last place that the dimensions with smaller strides reach
  for (const auto& [stride, size] : dimensions) {
    if (stride <= last) return true;
    last += stride * (size - 1);
  }
  return false;
}

struct MemoryRange {
  explicit MemoryRange(const at::Tensor& tensor) {
    if (!tensor.has_storage()) return;  // the tensor's own checks refuse it
    begin = static_cast<const std::byte*>(tensor.const_data_ptr());
    end = begin + tensor.nbytes();
  }
  bool overlaps(const MemoryRange& other) const { return begin < other.end && other.begin < end; }

  const std::byte* begin = nullptr;
  const std::byte* end = nullptr;
};

}  // namespace

at::Tensor plain_memory(const at::Tensor& tensor) {
  const bool lazy = tensor.is_conj() || tensor.is_neg() || tensor._is_zerotensor();
  return lazy ? tensor.clone(at::MemoryFormat::Contiguous) : tensor.contiguous();
}

void require_writable(const char* what, const at::Tensor& tensor) {
  if (!tensor._is_zerotensor() && !elements_may_overlap(tensor)) return;
  throw UsageError(std::string(what) + ": elements of the tensor " + describe_tensor(tensor) +
                   " share memory (expand() or unfold()), so it cannot hold a result. Pass its clone().");
}

void require_dense(const char* what, const at::Tensor& tensor) {
  const std::string prefix = std::string(what) + ": ";
  if (!tensor.defined()) throw UsageError(prefix + "the tensor is undefined.");
  if (tensor.layout() != at::kStrided || tensor.is_quantized()) {
    throw UsageError(prefix + "the tensor is not dense.");
  }
}

void require_distinct(const char* what, const std::vector<at::Tensor>& outputs) {
  std::set<std::pair<const c10::StorageImpl*, std::int64_t>> places;
  for (const at::Tensor& output : outputs) {
    if (!output.defined() || !output.has_storage() || output.numel() == 0) continue;
    if (places.emplace(output.storage().unsafeGetStorageImpl(), output.storage_offset()).second) continue;
    throw UsageError(std::string(what) + ": two outputs are the same memory of " + describe_tensor(output) +
                     ", so one result would replace the other. Pass a tensor of its own for each rank: "
                     "std::vector<at::Tensor>(size, tensor) holds one tensor size times.");
  }
}

void require_available_device(const char* what, const at::Tensor& tensor) {
  if (tensor.is_meta()) throw UsageError(std::string(what) + ": the tensor is on the meta device and holds no values.");
  if (!devices::is_accelerator(tensor.device())) return;
  const int count = devices::device_count(tensor.device().type());
  if (tensor.device().index() < count) return;
  throw UsageError(std::string(what) + ": the tensor is on " + tensor.device().str() + ", but this process has " +
                   std::to_string(count) + " devices of that type.");
}

ContiguousTensor::ContiguousTensor(const char* what, const at::Tensor& tensor, Use use, DeviceAccess access) {
  require_available_device(what, tensor);
  if (use != Use::input) {
    require_writable(what, tensor);
    if (!tensor.is_inference()) tensor.unsafeGetTensorImpl()->bump_version();
  }
  tensor_ = tensor.detach();
  if (access == DeviceAccess::staged && devices::is_accelerator(tensor.device())) {
    if (use != Use::output) on_device_ = plain_and_kept(tensor_);
    memory_ = devices::pinned_like(tensor_);
    return;
  }
  memory_ = plain_and_kept(tensor_);
  // Ends copy-on-write here: other threads write to the memory by its address.
  if (use != Use::input) (void)memory_.mutable_data_ptr();
}

bool ContiguousTensor::copy_to_host() const {
  if (!on_device_.defined() || on_device_.numel() == 0) return false;
  at::Tensor(memory_).copy_(on_device_, /*non_blocking=*/true);
  return true;
}

void ContiguousTensor::write_back() const {
  // This thread is not in InferenceMode, in which the program may have made the tensor.
  const at::AutoDispatchBelowADInplaceOrView without_autograd;
  if (!memory_.is_same(tensor_)) at::Tensor(tensor_).copy_(memory_, /*non_blocking=*/!tensor_.is_cpu());
}

void ContiguousTensor::record_use(const devices::SideStream& stream) const {
  for (const at::Tensor* const used : {&tensor_, &on_device_, &memory_}) {
    if (used->defined() && !used->is_cpu()) stream.record_use(*used);
  }
}

void require_reducible(const char* what, const at::Tensor& tensor, ReduceOp op) {
  const auto dtype = tensor.scalar_type();
  // LibTorch has no arithmetic of Float8, Float4, and unsigned integers of more than 8 bits.
  constexpr std::array with_arithmetic{at::kBool,        at::kByte,         at::kChar,         at::kShort, at::kInt,
                                       at::kLong,        at::kHalf,         at::kBFloat16,     at::kFloat, at::kDouble,
                                       at::kComplexHalf, at::kComplexFloat, at::kComplexDouble};
  if (std::ranges::find(with_arithmetic, dtype) == with_arithmetic.end()) {
    throw UsageError(std::string(what) + ": there is no reduction of " + describe_tensor(tensor) +
                     ": convert it to another dtype.");
  }
  const bool floating = at::isFloatingType(dtype);
  const bool plain = floating || at::isIntegralType(dtype, /*includeBool=*/true);
  const bool ordered = op == ReduceOp::min || op == ReduceOp::max;
  if (op == ReduceOp::mean && !floating) {
    throw UsageError(std::string(what) + ": mean needs a floating dtype, not " + describe_tensor(tensor) + ".");
  }
  const bool bitwise = op == ReduceOp::bit_and || op == ReduceOp::bit_or || op == ReduceOp::bit_xor;
  if (bitwise && !at::isIntegralType(dtype, /*includeBool=*/true)) {
    throw UsageError(std::string(what) + ": bitwise operations need an integer dtype or bool, not " +
                     describe_tensor(tensor) + ".");
  }
  if (!plain && (ordered || !at::isComplexType(dtype))) {
    throw UsageError(std::string(what) + ": this operation is not defined for " + describe_tensor(tensor) + ".");
  }
}

at::Tensor apart_from(const at::Tensor& output, const at::Tensor& input, int rank) {
  const MemoryRange to(output);
  const MemoryRange from(input);
  if (!to.overlaps(from)) return input;
  const bool output_is_whole = output.nbytes() > input.nbytes();
  const auto part = static_cast<std::ptrdiff_t>(std::min(output.nbytes(), input.nbytes())) * rank;
  const bool is_own_part = output_is_whole ? from.begin == to.begin + part : to.begin == from.begin + part;
  return is_own_part && output.nbytes() != input.nbytes() ? input : input.clone();
}

std::vector<at::Tensor> apart_from(const std::vector<at::Tensor>& outputs, const std::vector<at::Tensor>& inputs) {
  const std::vector<MemoryRange> written(outputs.begin(), outputs.end());
  std::vector<at::Tensor> apart = inputs;
  for (at::Tensor& input : apart) {
    const MemoryRange read(input);
    if (std::ranges::any_of(written, [&](const MemoryRange& range) { return range.overlaps(read); }))
      input = input.clone();
  }
  return apart;
}

void require_parts(const char* what, const char* whole_name, const at::Tensor& whole, const char* part_name,
                   const at::Tensor& part, int size) {
  require_same_dtype(what, whole, part);
  if (whole.numel() == part.numel() * size) return;
  throw UsageError(std::string(what) + ": " + whole_name + " is " + describe_tensor(whole) + ", but " + part_name +
                   " is " + describe_tensor(part) + ": with " + std::to_string(size) + " ranks " + whole_name +
                   " must hold " + std::to_string(part.numel() * size) + " elements.");
}

void require_equal_sizes(const char* what, const at::Tensor& output, const at::Tensor& input, int size) {
  require_same_dtype(what, output, input);
  if (output.numel() == input.numel() && input.numel() % size == 0) return;
  throw UsageError(std::string(what) + ": output is " + describe_tensor(output) + ", input " + describe_tensor(input) +
                   "; both must hold the same number of elements, divisible by " + std::to_string(size) + ".");
}

}  // namespace tutti::comm
