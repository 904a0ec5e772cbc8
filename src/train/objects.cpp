#include "tutti/detail/train/objects.h"

#include <ATen/Functions.h>

#include "comm/tensor_checks.h"
#include "tutti/core/error.h"

namespace tutti::detail {

namespace {

constexpr std::int32_t undefined = -1;

std::string_view bytes_of(const at::Tensor& tensor) {
  return {static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes()};
}

}  // namespace

std::string_view ByteReader::take(std::uint64_t count) {
  if (count > rest_.size()) throw UsageError("unpack: the bytes end before the object does");
  const std::string_view front = rest_.substr(0, count);
  rest_.remove_prefix(count);
  return front;
}

std::uint64_t ByteReader::count() {
  const auto count = number<std::uint64_t>();
  if (count > rest_.size()) throw UsageError("unpack: the bytes end before the object does");
  return count;
}

void refuse_leftover_bytes() {
  throw UsageError("unpack: bytes are left over: they were packed from another type");
}

void ObjectCodec<at::Tensor>::write(std::string& bytes, const at::Tensor& tensor) {
  if (!tensor.defined()) return append_number(bytes, undefined);
  if (tensor.layout() != at::kStrided || tensor.is_quantized() || tensor.is_meta()) {
    throw UsageError("pack: a tensor that is not dense cannot be sent");
  }
  append_number(bytes, static_cast<std::int32_t>(tensor.scalar_type()));
  ObjectCodec<std::vector<std::int64_t>>::write(bytes, tensor.sizes().vec());
  bytes += bytes_of(comm::plain_memory(tensor.detach().to(at::kCPU)));
}

at::Tensor ObjectCodec<at::Tensor>::read(ByteReader& bytes) {
  const auto dtype = bytes.number<std::int32_t>();
  if (dtype == undefined) return {};
  if (dtype < 0 || dtype >= static_cast<std::int32_t>(at::ScalarType::Undefined)) {
    throw UsageError("unpack: there is no dtype number " + std::to_string(dtype));
  }
  const auto sizes = ObjectCodec<std::vector<std::int64_t>>::read(bytes);
  const at::Tensor tensor = at::empty(sizes, static_cast<at::ScalarType>(dtype));
  const std::string_view content = bytes.take(tensor.nbytes());
  if (!content.empty()) std::memcpy(tensor.data_ptr(), content.data(), content.size());
  return tensor;
}

}  // namespace tutti::detail
