#include "local_sgd/trained_parameters.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <set>
#include <span>

#include "device/devices.h"
#include "device/host_copy.h"
#include "tutti/core/error.h"
#include "tutti/detail/core/crc32c.h"

namespace tutti::local_sgd {
namespace {

constexpr std::size_t batch_bytes = 64 << 20;  // copied from a device at once

/// All elements in the order of memory, which is equal on all ranks if strides are.
at::Tensor flat_memory(const at::Tensor& tensor) {
  return tensor.detach().as_strided({tensor.numel()}, {1}, tensor.storage_offset());
}

void require_reducible(const NamedParameter& parameter) {
  const at::Tensor& tensor = parameter.tensor;
  const std::string who = "Local SGD: parameter '" + parameter.name + "' ";
  if (tensor.is_meta()) throw UsageError(who + "is on the meta device, which has no values");
  if (tensor.scalar_type() != at::kFloat && tensor.scalar_type() != at::kDouble) {
    throw UsageError(who + "is " + toString(tensor.scalar_type()) + ": convert it to float or double");
  }
  if (tensor.layout() != at::kStrided || !tensor.is_non_overlapping_and_dense()) {
    throw UsageError(who + "is not dense: make it contiguous()");
  }
  if (tensor.is_neg()) throw UsageError(who + "is a lazy negation: register its resolve_neg()");
}

}  // namespace

TrainedParameters::TrainedParameters(const std::vector<NamedParameter>& parameters) {
  std::set<const c10::TensorImpl*> seen;
  for (const NamedParameter& parameter : parameters) {
    if (!parameter.tensor.defined()) {
      throw UsageError("Local SGD: parameter '" + parameter.name + "' is undefined");
    }
    if (!parameter.tensor.requires_grad()) continue;
    if (!seen.insert(parameter.tensor.unsafeGetTensorImpl()).second) continue;
    require_reducible(parameter);
    parameters_.push_back({.named = parameter,
                           .dtype = parameter.tensor.scalar_type(),
                           .device = parameter.tensor.device(),
                           .sizes = parameter.tensor.sizes().vec(),
                           .strides = parameter.tensor.strides().vec()});
  }
}

std::vector<std::int64_t> TrainedParameters::sizes() const {
  std::vector<std::int64_t> result;
  for (const Parameter& parameter : parameters_) result.push_back(parameter.named.tensor.numel());
  return result;
}

bool TrainedParameters::any_double() const {
  for (const Parameter& parameter : parameters_) {
    if (parameter.dtype == at::kDouble) return true;
  }
  return false;
}

bool TrainedParameters::any_on_accelerator() const {
  return std::ranges::any_of(parameters_, [](const Parameter& one) { return devices::is_accelerator(one.device); });
}

void TrainedParameters::check() const {
  for (const Parameter& parameter : parameters_) {
    const at::Tensor& tensor = parameter.named.tensor;
    if (tensor.scalar_type() != parameter.dtype || tensor.sizes() != parameter.sizes ||
        tensor.strides() != parameter.strides || tensor.device() != parameter.device) {
      throw UsageError("Local SGD: parameter '" + parameter.named.name +
                       "' has another shape, dtype or device than at construction: convert the model before "
                       "constructing the algorithm");
    }
  }
}

at::Tensor TrainedParameters::at(const Piece& piece) const {
  return flat_memory((*this)[piece.parameter].tensor).slice(0, piece.offset, piece.offset + piece.length);
}

std::uint32_t TrainedParameters::checksum() const {
  std::uint32_t sum = 0;
  std::vector<at::Tensor> batch;
  std::size_t bytes = 0;
  const auto add_batch = [&] {
    for (const at::Tensor& values : devices::copies_on_host(batch)) {
      sum = crc32c(std::span(static_cast<const std::byte*>(values.const_data_ptr()), values.nbytes()), sum);
    }
    batch.clear();
    bytes = 0;
  };
  for (const Parameter& parameter : parameters_) {
    batch.push_back(flat_memory(parameter.named.tensor));
    bytes += batch.back().nbytes();
    if (bytes >= batch_bytes) add_batch();
  }
  add_batch();
  return sum;
}

}  // namespace tutti::local_sgd
