#include "local_sgd/agreement.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <sstream>
#include <string>

#include "tutti/core/error.h"
#include "tutti/detail/comm/inner_call.h"

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

std::string describe(const LocalUpdateOptions& options) {
  std::ostringstream text;
  text << std::hexfloat << "options: local_steps " << options.local_steps << ", warmup_steps " << options.warmup_steps
       << ", method " << static_cast<int>(options.method) << ", slowmo " << options.slowmo.alpha << ' '
       << options.slowmo.beta << ", diloco " << options.diloco.lr << ' ' << options.diloco.momentum << ' '
       << options.diloco.nesterov << ", steps_inside_node " << options.steps_inside_node << ", streaming "
       << options.streaming.fragments << ' ' << options.streaming.overlap_steps << ' ' << options.streaming.mix << ' '
       << options.streaming.keep_progress << ", wire " << static_cast<int>(options.wire) << ", buffers "
       << static_cast<int>(options.contract.buffers) << ", momentum " << static_cast<int>(options.contract.momentum)
       << ", message_bytes " << options.message_bytes << ", check_replicas " << options.check_replicas;
  return text.str();
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

}  // namespace

void agree(const std::vector<NamedParameter>& parameters, const std::vector<NamedParameter>& buffers,
           const LocalUpdateOptions& options, const Communicator& channel) {
  std::string mine = describe(options) + '\n';
  for (const NamedParameter& parameter : parameters) mine += describe("parameter", parameter) + '\n';
  for (const NamedParameter& buffer : buffers) mine += describe("buffer", buffer) + '\n';
  const std::vector<std::string> all = channel.all_gather_object(mine, comm::inner_call("local updates"));
  const std::vector<std::string> first = lines_of(all.front());
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all.front()) continue;
    const std::vector<std::string> other = lines_of(all[rank]);
    std::size_t line = 0;
    while (line < std::min(first.size(), other.size()) && first[line] == other[line]) ++line;
    const auto at = [line](const std::vector<std::string>& lines) {
      return line < lines.size() ? lines[line] : std::string("nothing");
    };
    throw Divergence("local updates differ between ranks: rank 0 has " + at(first) + " where rank " +
                     std::to_string(rank) + " has " + at(other) + ". Use the same model and options on all ranks");
  }
}

void agree_on_values(const TrainedParameters& parameters, const Communicator& channel) {
  const std::vector<std::string> sums =
      channel.all_gather_object(std::to_string(parameters.checksum()), comm::inner_call("replicas"));
  for (std::size_t rank = 1; rank < sums.size(); ++rank) {
    if (sums[rank] == sums.front()) continue;
    throw Divergence("parameters of rank " + std::to_string(rank) +
                     " have other values than those of rank 0: make them equal before local updates begin, or set "
                     "check_replicas to false when a checkpoint taken within a round was loaded");
  }
}

}  // namespace tutti::local_sgd
