#include "local_sgd/agreement.h"

#include <ATen/core/Tensor.h>

#include <array>
#include <charconv>
#include <sstream>
#include <string>

#include "core/different_line.h"
#include "tutti/core/error.h"
#include "tutti/detail/comm/internal_call.h"

namespace tutti::local_sgd {
namespace {

std::string describe(const char* what, const NamedParameter& parameter) {
  std::ostringstream text;
  text << what << " '" << parameter.name << "' ";
  if (!parameter.tensor.defined()) {
    text << "undefined";
  } else {
    text << toString(parameter.tensor.scalar_type()) << parameter.tensor.sizes() << " with strides "
         << parameter.tensor.strides() << (parameter.tensor.requires_grad() ? "" : " (frozen)");
  }
  return text.str();
}

// The shortest text that reads back to the same value.
std::string shortest(double value) {
  std::array<char, 32> text{};
  return {text.data(), std::to_chars(text.data(), text.data() + text.size(), value).ptr};
}

// One option a line.
std::string describe(const LocalSgdAlgorithmOptions& options) {
  std::ostringstream text;
  text << std::boolalpha << "local_steps " << options.local_steps << "\nwarmup_steps " << options.warmup_steps
       << "\nouter_optimizer " << static_cast<int>(options.outer_optimizer) << "\nslowmo.alpha "
       << shortest(options.slowmo.alpha) << "\nslowmo.beta " << shortest(options.slowmo.beta) << "\ndiloco.lr "
       << shortest(options.diloco.lr) << "\ndiloco.momentum " << shortest(options.diloco.momentum)
       << "\ndiloco.nesterov " << options.diloco.nesterov << "\nnode_sync_steps " << options.node_sync_steps
       << "\nstreaming.fragments " << options.streaming.fragments << "\nstreaming.overlap_steps "
       << options.streaming.overlap_steps << "\nstreaming.mix " << shortest(options.streaming.mix)
       << "\nstreaming.keep_local_progress " << options.streaming.keep_local_progress << "\nwire "
       << static_cast<int>(options.wire) << "\nstate_sync.buffers " << static_cast<int>(options.state_sync.buffers)
       << "\nstate_sync.momentum " << static_cast<int>(options.state_sync.momentum) << "\nmessage_bytes "
       << options.message_bytes << "\ncheck_replicas " << options.check_replicas;
  return text.str();
}

}  // namespace

void check_agreement(const std::vector<NamedParameter>& parameters, const std::vector<NamedParameter>& buffers,
                     const LocalSgdAlgorithmOptions& options, const Communicator& communicator) {
  std::string local_text = describe(options) + '\n';
  for (const NamedParameter& parameter : parameters) local_text += describe("parameter", parameter) + '\n';
  if (options.state_sync.buffers != BufferRule::local) {
    for (const NamedParameter& buffer : buffers) local_text += describe("buffer", buffer) + '\n';
  }
  const std::vector<std::string> all =
      communicator.all_gather_object(local_text, comm::internal_call("Local SGD options"));
  if (const std::string difference = first_different_line(all); !difference.empty()) {
    throw MismatchError("Local SGD: model or options differ between ranks: " + difference +
                        ". Use the same model and options on all ranks");
  }
}

void check_equal_values(const TrainedParameters& parameters, const Communicator& communicator) {
  const std::vector<std::string> sums =
      communicator.all_gather_object(std::to_string(parameters.checksum()), comm::internal_call("replicas"));
  for (std::size_t rank = 1; rank < sums.size(); ++rank) {
    if (sums[rank] == sums.front()) continue;
    throw MismatchError(
        "Local SGD: parameters of rank " + std::to_string(rank) +
        " have other values than those of rank 0: make them equal before the algorithm is constructed, or set "
        "check_replicas to false when a checkpoint taken within a round was loaded");
  }
}

}  // namespace tutti::local_sgd
