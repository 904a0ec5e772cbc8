#include "local_sgd/agreement.h"

#include <ATen/core/Tensor.h>

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

std::string describe(const LocalSgdAlgorithmOptions& options) {
  std::ostringstream text;
  text << std::hexfloat << "options: local_steps " << options.local_steps << ", warmup_steps " << options.warmup_steps
       << ", outer_optimizer " << static_cast<int>(options.outer_optimizer) << ", slowmo " << options.slowmo.alpha
       << ' ' << options.slowmo.beta << ", diloco " << options.diloco.lr << ' ' << options.diloco.momentum << ' '
       << options.diloco.nesterov << ", node_sync_steps " << options.node_sync_steps << ", streaming "
       << options.streaming.fragments << ' ' << options.streaming.overlap_steps << ' ' << options.streaming.mix << ' '
       << options.streaming.keep_local_progress << ", wire " << static_cast<int>(options.wire) << ", buffers "
       << static_cast<int>(options.state_sync.buffers) << ", momentum " << static_cast<int>(options.state_sync.momentum)
       << ", message_bytes " << options.message_bytes << ", check_replicas " << options.check_replicas;
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
