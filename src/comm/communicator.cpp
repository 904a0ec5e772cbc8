#include "tutti/comm/communicator.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>

#include "comm/backend/current_operation.h"
#include "comm/backend/describe.h"
#include "comm/backend/subgroup.h"
#include "comm/backend/topology.h"
#include "comm/describe_call.h"
#include "comm/device_call.h"
#include "comm/make_communicator.h"
#include "comm/operation_queue.h"
#include "comm/reduction/reduce_tree.h"
#include "comm/single_backend.h"
#include "comm/tensor_checks.h"
#include "core/in_this_process.h"
#include "tutti/core/error.h"
#include "tutti/detail/comm/internal_call.h"

namespace tutti {
namespace {

using comm::Backend;
using comm::CallTensors;
using comm::Operation;
using GatheredCalls = comm::OperationQueue::GatheredCalls;

using comm::describe_op;
using comm::require_rank;

}  // namespace

Communicator make_communicator(std::shared_ptr<comm::Backend> backend, const CommunicatorOptions& options,
                               std::string name, comm::Services services) {
  return Communicator(make_shared_in_this_process<comm::OperationQueue>(std::move(backend), options.timeout,
                                                                        std::move(name), std::move(services)));
}

Communicator::Communicator()
    : Communicator(std::make_shared<comm::OperationQueue>(comm::make_single_backend(), CommunicatorOptions().timeout,
                                                          "", comm::Services{})) {}

Communicator::Communicator(std::shared_ptr<comm::OperationQueue> queue) : queue_(std::move(queue)) {}

int Communicator::rank() const {
  return queue_->backend().rank();
}
int Communicator::size() const {
  return queue_->backend().size();
}
const Topology& Communicator::topology() const {
  return queue_->backend().topology();
}
const std::string& Communicator::backend_name() const {
  return queue_->backend().traits().name;
}
bool Communicator::failed() const {
  return queue_->failed();
}
void Communicator::set_step(std::int64_t step) const {
  if (const auto& recorder = queue_->services().recorder) recorder->set_step(step);
}

Work Communicator::all_reduce(at::Tensor tensor, ReduceOp op, const CallOptions& call) const {
  CallTensors tensors("all_reduce", queue_->backend().traits());
  const auto flat = tensors.in_place(tensor);
  comm::require_reducible("all_reduce", tensor, op);
  const auto arguments = comm::describe_tensor(tensor) + ", " + describe_op(op);
  const auto reduce_payloads = [flat, op](const auto& payloads) {
    comm::reduce_tree(payloads, static_cast<std::byte*>(flat.memory().data_ptr()),
                      static_cast<std::size_t>(flat.memory().numel()), flat.memory().scalar_type(),
                      comm::make_reduction(op, static_cast<int>(payloads.size())));
  };
  const auto exchange = [flat, op](Backend& backend, const Operation& operation) {
    backend.all_reduce(operation, flat.memory(), op);
  };
  return Work(queue_->call_backend("all_reduce", arguments, call, tensors, exchange, {flat.memory(), reduce_payloads}));
}

Work Communicator::all_gather(at::Tensor output, at::Tensor input, const CallOptions& call) const {
  CallTensors tensors("all_gather", queue_->backend().traits());
  const auto to = tensors.output(output);
  const auto from = tensors.input(comm::apart_from(output, input, rank()));
  comm::require_parts("all_gather", "output", output, "input", input, size());
  const auto copy = [to, bytes = input.nbytes()](const auto& payloads) {
    auto* part = static_cast<std::byte*>(to.memory().data_ptr());
    for (const std::byte* payload : payloads) part = std::copy_n(payload, bytes, part);
  };
  const auto exchange = [to, from](Backend& backend, const Operation& operation) {
    backend.all_gather(operation, to.memory(), from.memory());
  };
  return Work(
      queue_->call_backend("all_gather", comm::describe_tensor(input), call, tensors, exchange, {from.memory(), copy}));
}

Work Communicator::reduce_scatter(at::Tensor output, at::Tensor input, ReduceOp op, const CallOptions& call) const {
  CallTensors tensors("reduce_scatter", queue_->backend().traits());
  const auto to = tensors.output(output);
  const auto from = tensors.input(comm::apart_from(output, input, rank()));
  comm::require_reducible("reduce_scatter", input, op);
  comm::require_parts("reduce_scatter", "input", input, "output", output, size());
  const auto arguments = comm::describe_tensor(input) + ", " + describe_op(op);
  const auto exchange = [to, from, op](Backend& backend, const Operation& operation) {
    backend.reduce_scatter(operation, to.memory(), from.memory(), op);
  };
  return Work(queue_->call_backend("reduce_scatter", arguments, call, tensors, exchange));
}

Work Communicator::all_to_all(at::Tensor output, at::Tensor input, const CallOptions& call) const {
  CallTensors tensors("all_to_all", queue_->backend().traits());
  const auto to = tensors.output(output);
  const auto from = tensors.input(comm::apart_from(output, input, rank()));
  comm::require_equal_sizes("all_to_all", output, input, size());
  const auto exchange = [to, from](Backend& backend, const Operation& operation) {
    backend.all_to_all(operation, to.memory(), from.memory());
  };
  return Work(queue_->call_backend("all_to_all", comm::describe_tensor(input), call, tensors, exchange));
}

Work Communicator::broadcast(at::Tensor tensor, int root, const CallOptions& call) const {
  require_rank(root, size(), "broadcast");
  CallTensors tensors("broadcast", queue_->backend().traits());
  const auto flat = rank() == root ? tensors.in_place(tensor, /*is_written=*/false) : tensors.output(tensor);
  const auto arguments = comm::describe_tensor(tensor) + ", root " + std::to_string(root);
  const auto copy = [flat, root, here = rank()](const auto& payloads) {
    if (here == root) return;
    std::copy_n(payloads[static_cast<std::size_t>(root)], flat.memory().nbytes(),
                static_cast<std::byte*>(flat.memory().data_ptr()));
  };
  const auto exchange = [flat, root](Backend& backend, const Operation& operation) {
    backend.broadcast(operation, flat.memory(), root);
  };
  return Work(queue_->call_backend("broadcast", arguments, call, tensors, exchange, {flat.memory(), copy}));
}

Work Communicator::barrier(const CallOptions& call) const {
  // The comparison of call signatures is a barrier: every rank waits for the signatures of all ranks.
  return Work(queue_->call("barrier", "", call, [](const Operation&, const GatheredCalls&) {},
                           {.payload = std::span<const std::byte>()}));
}

std::vector<std::string> Communicator::all_gather_object(const std::string& object, const CallOptions& call) const {
  std::vector<std::string> objects;
  const auto gather = [&](const Operation& operation, const GatheredCalls& gathered) {
    const std::uint64_t longest = comm::longest_of(gathered.by_rank);
    const auto width = static_cast<std::int64_t>(longest);
    auto block = at::empty({width}, at::kByte);
    auto all = at::empty({width * size()}, at::kByte);
    std::ranges::copy(object, static_cast<char*>(block.data_ptr()));
    queue_->backend().all_gather(operation, all, block);
    for (std::size_t rank = 0; rank < gathered.by_rank.size(); ++rank) {
      objects.emplace_back(static_cast<const char*>(all.data_ptr()) + rank * longest, gathered.by_rank[rank].length);
    }
  };
  queue_->call("all_gather_object", "", call, gather, {.length = object.size()})->wait();
  return objects;
}

std::string Communicator::broadcast_object(const std::string& object, int root, const CallOptions& call) const {
  require_rank(root, size(), "broadcast_object");
  std::string result = object;
  const auto broadcast_bytes = [&](const Operation& operation, const GatheredCalls& gathered) {
    comm::longest_of(gathered.by_rank);  // throws for an impossible length
    const auto length = gathered.by_rank[static_cast<std::size_t>(root)].length;
    auto bytes = at::empty({static_cast<std::int64_t>(length)}, at::kByte);
    if (rank() == root) std::ranges::copy(object, static_cast<char*>(bytes.data_ptr()));
    queue_->backend().broadcast(operation, bytes, root);
    result.assign(static_cast<const char*>(bytes.data_ptr()), length);
  };
  const auto arguments = "root " + std::to_string(root);
  queue_->call("broadcast_object", arguments, call, broadcast_bytes, {.length = object.size()})->wait();
  return result;
}

std::optional<Communicator> Communicator::split(int color, int key, const CallOptions& call) const {
  std::optional<Communicator> group;
  const auto connect_group = [&](const Operation& operation, const GatheredCalls&) {
    auto request = at::empty({2}, at::kInt);
    auto requests = at::empty({size(), 2}, at::kInt);
    request.data_ptr<int>()[0] = color;
    request.data_ptr<int>()[1] = key;
    queue_->backend().all_gather(operation, requests, request);
    if (color < 0) return;

    const int* const all = requests.data_ptr<int>();  // by rank: color, key
    std::vector<int> members;
    for (int other = 0; other < size(); ++other) {
      if (all[2 * other] == color) members.push_back(other);
    }
    std::stable_sort(members.begin(), members.end(), [&](int a, int b) { return all[2 * a + 1] < all[2 * b + 1]; });
    const auto group_name = queue_->child_name(operation, "split-" + std::to_string(color));
    auto backend = comm::make_single_backend();
    comm::Subgroup{.parent_ranks = members}.run([&] {
      if (members.size() > 1) backend = queue_->backend().split(members, group_name, operation.timeout);
      backend->connect(operation.timeout);
    });
    group = make_communicator(std::move(backend), {.timeout = queue_->timeout()}, group_name,
                              queue_->services().for_group(members, group_name));
  };
  queue_->call("split", "", call, connect_group)->wait();
  // No rank leaves before all groups have connected: rank 0 may run the coordinator that they connect through.
  barrier({.timeout = call.timeout, .name = "split", .where = call.where}).wait();
  return group;
}

Communicator Communicator::subgroup(const std::vector<int>& ranks, const std::string& name) const {
  std::vector<int> sorted = ranks;
  std::ranges::sort(sorted);
  const bool repeated = std::ranges::adjacent_find(sorted) != sorted.end();
  const bool outside = sorted.empty() || sorted.front() < 0 || sorted.back() >= size();
  if (repeated || outside || !std::ranges::binary_search(sorted, rank())) {
    throw UsageError("subgroup: the list must hold ranks of this group of " + std::to_string(size()) +
                     ", each once, and the calling rank " + std::to_string(rank()) + ".");
  }
  queue_->throw_if_failed();
  const auto full_name = queue_->subgroup_name(name, sorted.front());
  std::optional<Communicator> group;
  // On the worker thread, because the backend's other calls run there.
  queue_
      ->submit([&] {
        const Operation operation{
            .op_name = "subgroup", .name = name, .timeout = queue_->timeout(), .job_ranks = queue_->job_ranks()};
        const comm::CurrentOperation here(operation);
        auto backend = comm::make_single_backend();
        try {
          comm::Subgroup{.parent_ranks = ranks}.run([&] {
            if (ranks.size() > 1) backend = queue_->backend().split(ranks, full_name, operation.timeout);
          });
        } catch (const comm::TransferError& error) {
          throw PeerError("subgroup '" + name + "': could not connect to " +
                              operation.job_ranks.describe(error.peers()) + " (" + error.what() + ")",
                          error.peers());
        } catch (const TimeoutError& late) {
          throw TimeoutError(std::string(late.what()) +
                                 " Each of them must call subgroup() with this name and the same list, in one order.",
                             late.ranks());
        }
        group = make_communicator(std::move(backend), {.timeout = queue_->timeout()}, full_name,
                                  queue_->services().for_group(ranks, full_name));
      })
      ->wait();
  return *group;
}

Communicator Communicator::duplicate(const std::string& name) const {
  std::optional<Communicator> copy;
  const auto connect_copy = [&](const Operation& operation, const GatheredCalls&) {
    const auto full_name = queue_->child_name(operation, name);
    auto backend = queue_->backend().duplicate(full_name, operation.timeout);
    backend->connect(operation.timeout);
    copy = make_communicator(std::move(backend), {.timeout = queue_->timeout()}, full_name,
                             queue_->services().for_group(comm::all_ranks(size()), full_name));
  };
  queue_->call("duplicate", "", comm::internal_call(name), connect_copy)->wait();
  return *copy;
}

Communicator Communicator::get_or_duplicate(const std::string& name) const {
  return Communicator(queue_->shared_child(name, [&] { return duplicate(name).queue_; }));
}

}  // namespace tutti
