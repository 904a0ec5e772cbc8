#include "sync/replica_checker.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "device/devices.h"
#include "sync/sampled_hash.h"
#include "tutti/detail/comm/gradient_communicator.h"

namespace tutti::sync {

UsageError changed_after_prepare(const NamedParameter& parameter, const std::string& change) {
  return UsageError(
      "parameter " + quoted(parameter) + " was changed after prepare(): " + change +
      ". The reducer does not know the parameter as it is now: prepare the model again after changing it, "
      "together with its optimizer, or make a new DistributedDataParallel");
}

ReplicaChecker::ReplicaChecker(const ParameterSet& parameters, bool compares_values)
    : parameters_(parameters),
      compares_values_(compares_values),
      trained_(traits_of(parameters.trained)),
      frozen_(traits_of(parameters.frozen)),
      samples_(parameters.trained) {}

std::vector<ReplicaChecker::ParameterTraits> ReplicaChecker::traits_of(const std::vector<NamedParameter>& parameters) {
  std::vector<ParameterTraits> traits;
  for (const NamedParameter& parameter : parameters) {
    const at::Tensor& tensor = parameter.tensor;
    traits.push_back({.dtype = tensor.scalar_type(),
                      .device = tensor.device(),
                      .shape = tensor.sizes().vec(),
                      .requires_grad = tensor.requires_grad()});
  }
  return traits;
}

void ReplicaChecker::check(const NamedParameter& parameter, const ParameterTraits& traits) {
  const at::Tensor& tensor = parameter.tensor;
  const auto changed = [&parameter](const std::string& what, const auto& before, const auto& now) {
    return changed_after_prepare(parameter, what + " changed from " + before + " to " + now);
  };
  if (tensor.scalar_type() != traits.dtype) {
    throw changed("its dtype", std::string(toString(traits.dtype)), toString(tensor.scalar_type()));
  }
  if (tensor.device() != traits.device) throw changed("its device", traits.device.str(), tensor.device().str());
  if (tensor.sizes() != at::IntArrayRef(traits.shape)) throw changed_after_prepare(parameter, "its shape changed");
  if (tensor.requires_grad() != traits.requires_grad) {
    throw changed_after_prepare(parameter, traits.requires_grad ? "it was frozen" : "it was unfrozen");
  }
}

void ReplicaChecker::check_trained(int index) const {
  check(parameters_.trained[index], trained_[index]);
}

void ReplicaChecker::check_frozen() const {
  for (std::size_t i = 0; i < frozen_.size(); ++i) check(parameters_.frozen[i], frozen_[i]);
}

void ReplicaChecker::set_compares_values(bool compares_values) {
  compares_values_ = compares_values;
  forget_values();
  samples_.drop();
}

void ReplicaChecker::begin_pass(bool window_is_pending) {
  if (!compares_values_) return;
  if (!window_is_pending) ++window_round_;
  std::vector<std::uint64_t> now = hashes(window_round_);
  if (window_is_pending) throw_if_changed(now);
  hashes_ = std::move(now);
}

std::vector<std::uint64_t> ReplicaChecker::hashes(std::int64_t round) const {
  std::vector<std::uint64_t> hashes;
  hashes.reserve(parameters_.trained.size());
  for (const NamedParameter& parameter : parameters_.trained) hashes.push_back(sampled_hash(parameter.tensor, round));
  return hashes;
}

void ReplicaChecker::throw_if_changed(const std::vector<std::uint64_t>& now) const {
  if (hashes_.empty()) return;
  const auto changed = std::ranges::mismatch(hashes_, now).in1 - hashes_.begin();
  if (changed == std::ssize(hashes_)) return;
  for (std::size_t i = 0; i < hashes_.size(); ++i) {
    // An optimizer step changes every parameter that has a gradient.
    if (hashes_[i] == now[i] && parameters_.trained[i].tensor.grad().defined()) return;
  }
  throw UsageError("parameter " + quoted(parameters_.trained[changed]) +
                   " changed between the backward passes of a step: an optimizer stepped with gradients that were not "
                   "synchronized, or the program or forward writes parameters. Step with the optimizer that prepare() "
                   "returned, and write parameters after its step, alike on all ranks. A program that writes them "
                   "between the passes on purpose sets AcceleratorOptions::check_replicas to false");
}

std::uint64_t ReplicaChecker::combined_hash() {
  ++rank_round_;
  return compares_values_ ? combine(hashes_for_ranks()) : 0;
}

std::vector<std::uint64_t> ReplicaChecker::hashes_for_ranks() const {
  std::vector<std::uint64_t> all = hashes(rank_round_);
  for (std::size_t i = 0; i < samples_.hashes().size(); ++i) all[i] ^= samples_.hashes()[i];
  return all;
}

std::string ReplicaChecker::describe_drift(const Communicator& communicator) const {
  const std::vector<std::uint64_t> local_hashes = hashes_for_ranks();
  const auto exchange =
      comm::GradientCommunicator(communicator).start_small_all_gather(std::as_bytes(std::span(local_hashes)));
  const auto all = exchange->wait();
  const std::size_t count = local_hashes.size();
  std::vector<std::uint64_t> of_all(all.size() / sizeof(std::uint64_t));
  std::memcpy(of_all.data(), all.data(), all.size());
  for (std::size_t parameter = 0; parameter < count; ++parameter) {
    for (int rank = 1; rank < communicator.size(); ++rank) {
      if (of_all[rank * count + parameter] != of_all[parameter]) {
        const bool on_device = devices::is_accelerator(parameters_.trained[parameter].tensor.device());
        return "parameter " + quoted(parameters_.trained[parameter]) + " of rank " + std::to_string(rank) +
               " differs from that of rank 0" +
               (on_device ? ", as it was some steps ago: values on a device are compared late" : "") +
               ". Either forward writes it from the rank's own data (max_norm, normalized "
               "or clipped weights), or an optimizer stepped with gradients that were not synchronized, or the "
               "program changed it on some ranks only. Step with the optimizer that prepare() returned, and write "
               "parameters alike on all ranks. Where ranks have different kinds of processors, which round "
               "differently, "
               "set check_replicas to false";
      }
    }
  }
  return "parameters differ between ranks";
}

}  // namespace tutti::sync
