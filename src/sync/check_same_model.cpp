#include "sync/check_same_model.h"

#include <algorithm>
#include <sstream>
#include <string>

#include "sync/model_name.h"
#include "tutti/core/error.h"
#include "tutti/detail/comm/gradient_communicator.h"
#include "tutti/detail/comm/internal_call.h"

namespace tutti::sync {

namespace {

std::string describe(const NamedParameter& parameter) {
  std::ostringstream text;
  text << "'" << parameter.name << "' " << toString(parameter.tensor.scalar_type()) << parameter.tensor.sizes()
       << (parameter.tensor.requires_grad() ? "" : " (frozen)") << (parameter.sparse ? " (sparse)" : "");
  if (!parameter.tensor.is_cpu()) text << " on " << c10::DeviceTypeName(parameter.tensor.device().type(), true);
  // Gradients are summed in memory order, so strides must be equal.
  if (!parameter.tensor.is_contiguous()) text << " with strides " << parameter.tensor.strides();
  return text.str();
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

}  // namespace

void check_same_model(const std::vector<NamedParameter>& parameters, const ReducerOptions& options,
                      const Communicator& communicator) {
  std::ostringstream plan;
  plan << "buckets of " << options.buckets.first_bucket_bytes << " and " << options.buckets.bucket_bytes << " bytes"
       << (options.buckets.reorder ? ", reordered, " : ", ") << "policy " << static_cast<int>(options.policy)
       << ", replica check " << options.check_replicas << ", reproducible " << options.reproducible
       << ", gradient codec " << (options.gradient_codec ? options.gradient_codec->name() : "none") << '\n';
  for (const NamedParameter& parameter : parameters) plan << describe(parameter) << '\n';

  const std::vector<std::string> plans = communicator.all_gather_object(plan.str(), comm::internal_call("prepare"));
  const std::vector<std::string> first = lines_of(plans[0]);
  for (std::size_t rank = 1; rank < plans.size(); ++rank) {
    if (plans[rank] == plans[0]) continue;
    const std::vector<std::string> other = lines_of(plans[rank]);
    const std::size_t common = std::min(first.size(), other.size());
    std::size_t line = 0;
    while (line < common && first[line] == other[line]) ++line;
    const auto at = [line](const std::vector<std::string>& lines) {
      return line < lines.size() ? lines[line] : std::string("no parameter");
    };
    throw MismatchError(models_of(parameters) + "different models on two ranks: rank 0 has " + at(first) +
                        " where rank " + std::to_string(rank) + " has " + at(other) +
                        ". Build the same model on all ranks before preparing it");
  }
  // After the comparison, so that a rank that throws here does not block the other ranks.
  for (const NamedParameter& parameter : parameters) {
    if (parameter.tensor.requires_grad() &&
        !comm::GradientCommunicator(communicator).supports_device(parameter.tensor.device())) {
      throw UsageError("parameter " + quoted(parameter) + " is on " + parameter.tensor.device().str() + ", but the " +
                       communicator.backend_name() +
                       " backend synchronizes CPU memory only: for CUDA set the backend nccl");
    }
    if (options.gradient_codec && !parameter.tensor.is_cpu()) {
      throw UsageError("parameter " + quoted(parameter) + " is on " + parameter.tensor.device().str() +
                       ": a gradient_codec supports CPU memory only, gradients on a device are sent unencoded");
    }
    if (parameter.tensor.requires_grad() && !parameter.tensor.is_leaf()) {
      throw UsageError("parameter " + quoted(parameter) + " is not a leaf of the graph");
    }
  }
}

}  // namespace tutti::sync
