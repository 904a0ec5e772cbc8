#include "sync/replica_checker.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <span>

#include "tutti/detail/comm/gradient_communicator.h"

namespace tutti::sync {

namespace {

constexpr int samples_of_tensor = 16;

std::uint64_t mix(std::uint64_t hash, std::uint64_t value) {
  // splitmix64's finalizer: every input bit affects every output bit.
  hash ^= value + 0x9e3779b97f4a7c15ULL + (hash << 6) + (hash >> 2);
  hash = (hash ^ (hash >> 30)) * 0xbf58476d1ce4e5b9ULL;
  hash = (hash ^ (hash >> 27)) * 0x94d049bb133111ebULL;
  return hash ^ (hash >> 31);
}

}  // namespace

std::uint64_t sampled_hash(const at::Tensor& tensor, int salt) {
  const std::int64_t count = tensor.numel();
  if (!tensor.device().is_cpu() || count == 0 || !tensor.is_non_overlapping_and_dense()) return 0;
  const std::size_t size = tensor.element_size();
  const auto* bytes = static_cast<const std::byte*>(tensor.const_data_ptr());
  std::uint64_t hash = 0;
  const std::int64_t samples = std::min<std::int64_t>(samples_of_tensor, count);
  for (std::int64_t i = 0; i < samples; ++i) {
    const std::int64_t element = count * i / samples + (count / samples) * ((i * 7 + salt) % samples) / samples;
    std::uint64_t value = 0;
    std::memcpy(&value, bytes + static_cast<std::size_t>(element) * size, std::min(size, sizeof(value)));
    hash = mix(hash, value);
  }
  return hash;
}

ReplicaChecker::ReplicaChecker(const std::vector<NamedParameter>& parameters) : parameters_(parameters) {
  for (const NamedParameter& parameter : parameters) {
    const at::Tensor& tensor = parameter.tensor;
    traits_.push_back({.dtype = tensor.scalar_type(),
                       .device = tensor.device(),
                       .shape = tensor.sizes().vec(),
                       .requires_grad = tensor.requires_grad()});
  }
}

std::optional<std::string> ReplicaChecker::change_of(int index) const {
  const at::Tensor& tensor = parameters_[index].tensor;
  const ParameterTraits& traits = traits_[index];
  const auto change = [](const std::string& what, const auto& before, const auto& now) {
    return what + " changed from " + before + " to " + now;
  };
  if (tensor.scalar_type() != traits.dtype) {
    return change("its dtype", std::string(toString(traits.dtype)), toString(tensor.scalar_type()));
  }
  if (tensor.device() != traits.device) return change("its device", traits.device.str(), tensor.device().str());
  if (tensor.sizes() != at::IntArrayRef(traits.shape)) return "its shape changed";
  if (tensor.requires_grad() != traits.requires_grad) {
    return std::string(traits.requires_grad ? "it was frozen" : "it was unfrozen");
  }
  return std::nullopt;
}

ParameterHashes ReplicaChecker::hashes() const {
  ParameterHashes hashes;
  hashes.reserve(parameters_.size());
  for (const NamedParameter& parameter : parameters_) hashes.push_back(sampled_hash(parameter.tensor));
  return hashes;
}

std::optional<int> ReplicaChecker::first_difference(const ParameterHashes& a, const ParameterHashes& b) const {
  const auto [left, right] = std::ranges::mismatch(a, b);
  if (left == a.end()) return std::nullopt;
  return static_cast<int>(left - a.begin());
}

std::string ReplicaChecker::describe_drift(const Communicator& communicator) const {
  const ParameterHashes local_hashes = hashes();
  const auto exchange =
      comm::GradientCommunicator(communicator).start_small_all_gather(std::as_bytes(std::span(local_hashes)));
  const auto all = exchange->wait();
  const std::size_t count = local_hashes.size();
  std::vector<std::uint64_t> of_all(all.size() / sizeof(std::uint64_t));
  std::memcpy(of_all.data(), all.data(), all.size());
  for (std::size_t parameter = 0; parameter < count; ++parameter) {
    for (int rank = 1; rank < communicator.size(); ++rank) {
      if (of_all[rank * count + parameter] != of_all[parameter]) {
        return "parameter " + quoted(parameters_[parameter]) + " of rank " + std::to_string(rank) +
               " differs from that of rank 0: it was changed on some ranks only, or an optimizer stepped with "
               "gradients that were not synchronized. Step with the optimizer that prepare() returned";
      }
    }
  }
  return "parameters differ between ranks";
}

std::uint64_t combine(const ParameterHashes& hashes) {
  std::uint64_t combined = 0;
  for (const std::uint64_t hash : hashes) combined = mix(combined, hash);
  return combined;
}

}  // namespace tutti::sync
