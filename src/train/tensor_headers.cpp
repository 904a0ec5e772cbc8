#include "train/tensor_headers.h"

#include <algorithm>
#include <cctype>
#include <tuple>

#include "tutti/core/error.h"
#include "tutti/detail/train/objects.h"

namespace tutti {

namespace {

using PackedHeader = std::tuple<std::string, std::int32_t, std::vector<std::int64_t>, std::int32_t>;
using PackedCall = std::pair<std::string, std::vector<PackedHeader>>;  // error, headers

std::string name_of_dtype(std::int32_t dtype) {
  if (dtype == TensorHeader::undefined) return "undefined";
  if (dtype == TensorHeader::not_dense) return "not dense";
  std::string name = c10::toString(static_cast<at::ScalarType>(dtype));
  std::ranges::transform(name, name.begin(), [](unsigned char letter) { return std::tolower(letter); });
  return name;
}

std::int32_t dtype_of(const at::Tensor& tensor) {
  if (!tensor.defined()) return TensorHeader::undefined;
  if (tensor.layout() != at::kStrided || tensor.is_quantized() || tensor.is_meta()) return TensorHeader::not_dense;
  return static_cast<std::int32_t>(tensor.scalar_type());
}

bool same_sizes(std::vector<std::int64_t> a, std::vector<std::int64_t> b, SameShape same) {
  if (same == SameShape::dims) return a.size() == b.size();
  if (same == SameShape::but_rows && !a.empty() && !b.empty()) a[0] = b[0];
  return a == b;
}

bool agree(const TensorHeader& a, const TensorHeader& b, SameShape same) {
  return a.path == b.path && a.dtype == b.dtype && same_sizes(a.sizes, b.sizes, same);
}

/// The end of the message about a difference at `place` between the tensors of two ranks.
std::string remedy_for(const std::string& what, const TensorHeaders& a, const TensorHeaders& b, std::size_t place) {
  if (place >= a.size() || place >= b.size() || a[place].path != b[place].path) {
    return "Pass the same structure on all ranks";
  }
  if (a[place].dtype < 0 || b[place].dtype < 0) return "Pass a dense tensor on all ranks";
  if (a[place].dtype != b[place].dtype) return "Convert the tensor to one dtype on all ranks";
  const std::string for_objects = what.starts_with("gather") ? ", or gather_object() for any sizes" : "";
  if (a[place].sizes.size() != b[place].sizes.size()) {
    return "Pass tensors with the same number of dimensions on all ranks" + for_objects;
  }
  return "Use pad_across_processes() to make sizes equal" + for_objects;
}

std::string at_place(const TensorHeaders& tensors, std::size_t place) {
  return place < tensors.size() ? tensors[place].describe() : "no further tensor";
}

}  // namespace

std::string TensorHeader::describe() const {
  std::string text = path;
  if (!text.empty()) text += ' ';
  text += name_of_dtype(dtype);
  if (dtype < 0) return text;
  std::string numbers;
  for (const auto size : sizes) {
    if (!numbers.empty()) numbers += ", ";
    numbers += std::to_string(size);
  }
  text += " [" + numbers;
  text += ']';
  return text;
}

void require_same(const std::string& what, const std::vector<TensorHeaders>& ranks, SameShape same) {
  const TensorHeaders& first = ranks.front();
  for (std::size_t rank = 1; rank < ranks.size(); ++rank) {
    const TensorHeaders& other = ranks[rank];
    const auto shorter = std::min(first.size(), other.size());
    std::size_t place = 0;
    while (place < shorter && agree(first[place], other[place], same)) ++place;
    if (place == first.size() && place == other.size()) continue;
    std::string why = what + ": rank 0 has " + at_place(first, place);
    why += " where rank " + std::to_string(rank) + " has " + at_place(other, place);
    why += ". Nothing was exchanged. " + remedy_for(what, first, other, place);
    throw MismatchError(why);
  }
  for (const TensorHeader& tensor : first) {
    if (tensor.dtype >= 0) continue;
    std::string why = what + ": the tensor " + tensor.describe();
    throw UsageError(why + " cannot be sent: it must be dense");
  }
}

bool on_same_device_type(const std::vector<TensorHeaders>& ranks, std::size_t index) {
  return std::ranges::all_of(ranks, [&](const TensorHeaders& headers) {
    return headers[index].device_type == ranks.front()[index].device_type;
  });
}

CallOptions named(const std::string& what, const CallOptions& call) {
  CallOptions options = call;
  options.name = call.name.empty() ? what : what + ", '" + call.name + "'";
  return options;
}

void throw_errors(const std::string& what, const std::vector<std::string>& errors) {
  std::string all;
  for (std::size_t rank = 0; rank < errors.size(); ++rank) {
    if (errors[rank].empty()) continue;
    all += (all.empty() ? " rank " : "; rank ") + std::to_string(rank) + ": ";
    all += errors[rank];
  }
  if (!all.empty()) throw UsageError(what + ":" + all);
}

std::vector<TensorHeaders> exchange_headers(const Communicator& communicator, const std::string& what,
                                            const std::vector<NestedTensor>& local, SameShape same,
                                            const CallOptions& call, const std::string& error) {
  PackedCall own{error, {}};
  for (const NestedTensor& one : local) {
    const auto dtype = dtype_of(one.tensor);
    const bool is_dense = dtype >= 0;
    own.second.emplace_back(one.path, dtype, is_dense ? one.tensor.sizes().vec() : std::vector<std::int64_t>(),
                            is_dense ? static_cast<std::int32_t>(one.tensor.device().type()) : 0);
  }
  const auto packed = communicator.all_gather_object(pack(own), named(what, call));
  std::vector<std::string> errors;
  std::vector<TensorHeaders> ranks;
  for (const std::string& bytes : packed) {
    PackedCall from_rank = unpack<PackedCall>(bytes);
    errors.push_back(std::move(from_rank.first));
    TensorHeaders& headers = ranks.emplace_back();
    for (auto& [path, dtype, sizes, type] : from_rank.second) {
      headers.push_back({.path = std::move(path), .dtype = dtype, .sizes = std::move(sizes), .device_type = type});
    }
  }
  throw_errors(what, errors);
  require_same(what, ranks, same);
  return ranks;
}

}  // namespace tutti
