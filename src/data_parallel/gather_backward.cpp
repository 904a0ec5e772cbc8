#include "data_parallel/gather_backward.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/StreamGuard.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>

#include "tutti/core/error.h"

namespace tutti::data_parallel {
namespace {

using torch::autograd::variable_list;

/// The module's parameters in the order of replica 0.
std::vector<at::Tensor> parameters_of(const Pass& pass) {
  std::vector<at::Tensor> parameters;
  for (const auto& shared : pass.replicas.front().parameters) parameters.push_back(shared.module_parameter);
  return parameters;
}

/// The tensors to which the gathered output's graph leads: parameters, then inputs.
variable_list sources_of(const Pass& pass) {
  variable_list sources = parameters_of(pass);
  sources.insert(sources.end(), pass.inputs.begin(), pass.inputs.end());
  return sources;
}

/// The gradient of the gathered output, split by replica.
std::vector<at::Tensor> split(const at::Tensor& gradient, const Pass& pass) {
  std::vector<at::Tensor> parts;
  std::int64_t begin = 0;
  for (const auto& replica : pass.replicas) {
    const bool is_scalar = replica.output.dim() == 0;
    const std::int64_t length = is_scalar ? 1 : replica.output.size(0);
    const auto part = gradient.narrow(0, begin, length).to(replica.output.device(), /*non_blocking=*/true);
    parts.push_back(is_scalar ? part.squeeze(0) : part);
    begin += length;
  }
  return parts;
}

/// The gradients of one or more replicas: for each, its parameters, then its pieces. Undefined if the output does not
/// depend on them.
std::vector<variable_list> gradients_in(std::span<const Pass::ReplicaPass> replicas,
                                        std::span<const at::Tensor> gradients, bool keep_graph) {
  std::vector<variable_list> all(replicas.size());
  variable_list outputs, output_gradients, wanted;
  for (std::size_t i = 0; i < replicas.size(); ++i) {
    for (const auto& shared : replicas[i].parameters) all[i].push_back(shared.replica_parameter);
    all[i].insert(all[i].end(), replicas[i].pieces.begin(), replicas[i].pieces.end());
    if (!replicas[i].output.requires_grad()) continue;
    outputs.push_back(replicas[i].output);
    output_gradients.push_back(gradients[i]);
    for (const auto& leaf : all[i]) {
      if (leaf.requires_grad()) wanted.push_back(leaf);
    }
  }
  variable_list found;
  if (!wanted.empty()) {
    found = torch::autograd::grad(outputs, wanted, output_gradients, keep_graph, /*create_graph=*/false,
                                  /*allow_unused=*/true);
  }
  std::size_t next = 0;
  for (std::size_t i = 0; i < replicas.size(); ++i) {
    for (at::Tensor& leaf : all[i]) {
      leaf = leaf.requires_grad() && replicas[i].output.requires_grad() ? found[next++] : at::Tensor();
    }
  }
  return all;
}

/// Adds on `device` in the order of the replicas, so that the sum has the same bits each time.
at::Tensor sum(const std::vector<variable_list>& by_replica, std::size_t place, at::Device device) {
  at::Tensor total;
  bool is_own = false;  // autograd may return one tensor twice, so only tensors made here are written to
  for (const auto& gradients : by_replica) {
    if (!gradients[place].defined()) continue;
    const at::Tensor gradient = gradients[place].to(device, /*non_blocking=*/true);
    if (!total.defined()) {
      total = gradient;
    } else if (is_own && !total.is_sparse()) {
      total.add_(gradient);
    } else {
      total = total + gradient;
      is_own = true;
    }
  }
  return total;
}

/// Concatenates the gradients of the pieces; undefined if no replica has a gradient.
at::Tensor join(const Pass& pass, const std::vector<variable_list>& by_replica, std::size_t first, std::size_t input) {
  std::vector<at::Tensor> parts;
  bool any = false;
  for (std::size_t i = 0; i < by_replica.size(); ++i) {
    const at::Tensor& gradient = by_replica[i][first + input];
    any = any || gradient.defined();
    const at::Tensor part = gradient.defined() ? gradient : at::zeros_like(pass.replicas[i].pieces[input]);
    parts.push_back(part.to(pass.inputs[input].device(), /*non_blocking=*/true));
  }
  return any ? at::cat(parts) : at::Tensor();
}

class GatherBackward final : public torch::autograd::Node {
 public:
  explicit GatherBackward(std::shared_ptr<Pass> pass) : pass_(std::move(pass)) {}

  std::string name() const override { return "TuttiDataParallelBackward"; }
  void release_variables() override { pass_.reset(); }

  variable_list apply(variable_list&& gradients) override {
    if (pass_ == nullptr) {
      throw UsageError(
          "DataParallel: backward ran a second time through one forward: call the first backward with retain_graph");
    }
    if (at::GradMode::is_enabled()) {
      throw UsageError("DataParallel: backward does not support create_graph: use the module itself for it");
    }
    const Pass& pass = *pass_;
    const c10::MultiStreamGuard streams(pass.streams);
    const std::size_t parameters = pass.replicas.front().parameters.size();
    variable_list sums(parameters + pass.inputs.size());
    if (!gradients.front().defined()) return sums;

    const auto parts = split(gradients.front(), pass);
    const bool keep_graph = torch::autograd::get_current_graph_task_keep_graph();
    std::vector<variable_list> by_replica;
    if (pass.group->on_accelerators()) {
      // Autograd has one thread for each device, and this may be it: a backward pass that another thread starts would
      // wait for this node. One pass over all replicas runs in their devices' threads.
      by_replica = gradients_in(pass.replicas, parts, keep_graph);
    } else {
      by_replica.resize(pass.replicas.size());
      pass.group->run(static_cast<int>(pass.replicas.size()), "backward", [&](int index) {
        const auto i = static_cast<std::size_t>(index);
        by_replica[i] = gradients_in(std::span(&pass.replicas[i], 1), std::span(&parts[i], 1), keep_graph).front();
      });
    }
    for (std::size_t i = 0; i < parameters; ++i) {
      sums[i] = sum(by_replica, i, pass.replicas.front().parameters[i].module_parameter.device());
    }
    for (std::size_t i = 0; i < pass.inputs.size(); ++i) {
      if (task_should_compute_output(parameters + i)) sums[parameters + i] = join(pass, by_replica, parameters, i);
    }
    return sums;
  }

 private:
  std::shared_ptr<Pass> pass_;
};

/// Older releases of LibTorch hold nodes in edges by std::shared_ptr, newer ones by intrusive_ptr.
template <typename Pointer, typename Backward>
Pointer make_node(std::shared_ptr<Pass> pass) {
  if constexpr (std::is_same_v<Pointer, std::shared_ptr<torch::autograd::Node>>) {
    return std::make_shared<Backward>(std::move(pass));
  } else {
    return c10::make_intrusive<Backward>(std::move(pass));
  }
}

}  // namespace

void attach_backward(at::Tensor& gathered, std::shared_ptr<Pass> pass) {
  torch::autograd::edge_list edges;
  for (const auto& source : sources_of(*pass)) edges.push_back(torch::autograd::impl::gradient_edge(source));
  const auto node = make_node<decltype(torch::autograd::Edge::function), GatherBackward>(std::move(pass));
  node->set_next_edges(std::move(edges));
  torch::autograd::set_history(gathered, node);
}

}  // namespace tutti::data_parallel
