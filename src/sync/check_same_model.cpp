#include "sync/check_same_model.h"

#include <torch/nn/module.h>

#include <algorithm>
#include <map>
#include <sstream>
#include <string>

#include "core/different_line.h"
#include "device/devices.h"
#include "sync/model_name.h"
#include "sync/sync_policy.h"
#include "tutti/core/error.h"
#include "tutti/detail/comm/gradient_communicator.h"
#include "tutti/detail/comm/internal_call.h"

namespace tutti::sync {

namespace {

/// The type of a tensor's device; empty for CPU memory. Ranks use devices of different numbers.
std::string on_device(const at::Tensor& tensor) {
  if (tensor.is_cpu()) return "";
  return std::string(" on ") + c10::DeviceTypeName(tensor.device().type(), /*lower_case=*/true);
}

std::string describe(const NamedParameter& parameter) {
  std::ostringstream text;
  text << "'" << parameter.name << "' " << toString(parameter.tensor.scalar_type()) << parameter.tensor.sizes()
       << (parameter.tensor.requires_grad() ? "" : " (frozen)") << (parameter.sparse ? " (sparse)" : "");
  text << on_device(parameter.tensor);
  // Gradients are summed in memory order, so strides must be equal.
  if (!parameter.tensor.is_contiguous()) text << " with strides " << parameter.tensor.strides();
  return text.str();
}

/// The options that must be equal on all ranks, a line for each.
std::string describe(const ReducerOptions& options) {
  std::ostringstream text;
  text << std::boolalpha << "first_bucket_bytes " << options.buckets.first_bucket_bytes << "\nbucket_bytes "
       << options.buckets.bucket_bytes << "\nreorder " << options.buckets.reorder << "\npolicy "
       << name_of(options.policy) << "\ncheck_replicas " << options.check_replicas << "\ngradient_codec "
       << (options.gradient_codec ? options.gradient_codec->name() : "none") << "\ndetect_overflow "
       << options.detect_overflow << "\nreproducible " << options.reproducible << '\n';
  return text.str();
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

bool can_be_sent(const at::Tensor& buffer) {
  return buffer.layout() == at::kStrided && !buffer.is_quantized() && !buffer.is_meta();
}

/// The dtype, shape and type of device of each buffer, a line for each.
std::string describe_buffers(const std::vector<NamedParameter>& buffers) {
  std::ostringstream text;
  for (const NamedParameter& buffer : buffers) {
    text << quoted(buffer) << '\t';
    if (buffer.tensor.defined()) {
      text << toString(buffer.tensor.scalar_type()) << buffer.tensor.sizes() << on_device(buffer.tensor)
           << (can_be_sent(buffer.tensor) ? "" : " (not dense)");
    } else {
      text << "undefined";
    }
    text << '\n';
  }
  return text.str();
}

std::map<std::string, std::string> buffers_in(const std::string& text) {
  std::map<std::string, std::string> by_name;
  for (const std::string& line : lines_of(text)) {
    const auto tab = line.rfind('\t');
    by_name[line.substr(0, tab)] = line.substr(tab + 1);
  }
  return by_name;
}

MismatchError other_buffer(const std::string& name, const std::string& first, const std::string& other,
                           std::size_t rank) {
  return MismatchError("buffer " + name + " is " + first + " on rank 0 and " + other + " on rank " +
                       std::to_string(rank) +
                       ": give it the same shape and dtype on all ranks, or set buffer_sync to BufferSync::none, so "
                       "that each rank keeps its own buffers");
}

/// Throws UsageError for a parameter whose gradient no synchronization can take. Equal on ranks with the same model.
void require_synchronizable(const NamedParameter& parameter, const Communicator& communicator) {
  const at::Tensor& tensor = parameter.tensor;
  if (!tensor.requires_grad()) return;
  const comm::GradientCommunicator gradients(communicator);
  const std::string where = "parameter " + quoted(parameter) + " is on " + tensor.device().str();
  if (!gradients.supports_device(tensor.device())) {
    throw UsageError(where + ", where the " + communicator.backend_name() +
                     " backend does not sum gradients: set the backend staged, which serves every device");
  }
  if (parameter.sparse && devices::is_accelerator(tensor.device())) {
    throw UsageError(where +
                     ", and its gradients are sparse: these are synchronized in CPU memory only. Create the "
                     "embedding with sparse(false), or leave it on the CPU");
  }
  if (!tensor.is_leaf()) throw UsageError("parameter " + quoted(parameter) + " is not a leaf of the graph");
}

}  // namespace

std::vector<NamedParameter> named_buffers_of(const torch::nn::Module& module) {
  std::vector<NamedParameter> buffers;
  for (const auto& item : module.named_buffers()) buffers.push_back({.name = item.key(), .tensor = item.value()});
  return buffers;
}

std::vector<at::Tensor> check_same_buffers(const std::vector<NamedParameter>& buffers, bool may_differ,
                                           const Communicator& communicator) {
  const std::vector<std::string> texts =
      communicator.all_gather_object(describe_buffers(buffers), comm::internal_call("buffers"));
  std::map<std::string, std::string> equal = buffers_in(texts.front());
  for (std::size_t rank = 1; rank < texts.size(); ++rank) {
    if (texts[rank] == texts.front()) continue;
    std::map<std::string, std::string> left = buffers_in(texts[rank]);  // those that rank 0 does not have, at the end
    for (const auto& [name, what] : buffers_in(texts.front())) {
      const auto found = left.extract(name);
      if (!found.empty() && found.mapped() == what) continue;
      equal.erase(name);
      if (!may_differ) throw other_buffer(name, what, found.empty() ? "missing" : found.mapped(), rank);
    }
    if (!may_differ && !left.empty()) throw other_buffer(left.begin()->first, "missing", left.begin()->second, rank);
  }
  std::vector<at::Tensor> result;
  for (const NamedParameter& buffer : buffers) {
    if (!buffer.tensor.defined()) continue;
    if (can_be_sent(buffer.tensor)) {
      if (equal.contains(quoted(buffer))) result.push_back(buffer.tensor);
    } else if (!may_differ) {
      throw UsageError("buffer " + quoted(buffer) +
                       " is sparse or quantized, which cannot be sent: make it dense, or set buffer_sync to "
                       "BufferSync::none");
    }
  }
  return result;
}

void check_same_model(const std::vector<NamedParameter>& parameters, const ReducerOptions& options,
                      const Communicator& communicator) {
  const std::string of_options = describe(options);
  std::string text = of_options;
  for (const NamedParameter& parameter : parameters) text += describe(parameter) + '\n';
  const std::vector<std::string> of_ranks = communicator.all_gather_object(text, comm::internal_call("prepare"));
  if (const std::string difference = first_different_line(of_ranks); !difference.empty()) {
    const auto has_these_options = [&](const std::string& of_rank) { return of_rank.starts_with(of_options); };
    throw MismatchError(models_of(parameters) + (std::ranges::all_of(of_ranks, has_these_options)
                                                     ? "different models on two ranks: " + difference +
                                                           ". Build the same model on all ranks before preparing it"
                                                     : "different options of the synchronization: " + difference +
                                                           ". Pass the same options on all ranks"));
  }
  // After the comparison, so that a rank that throws here does not block the other ranks.
  for (const NamedParameter& parameter : parameters) require_synchronizable(parameter, communicator);
}

}  // namespace tutti::sync
