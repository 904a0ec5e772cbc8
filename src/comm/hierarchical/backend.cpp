#include "comm/hierarchical/backend.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <bit>
#include <optional>
#include <utility>

#include "comm/backend/current_operation.h"
#include "comm/backend/forwarding_backend.h"
#include "comm/backend/topology.h"
#include "comm/hierarchical/all_reduce.h"
#include "comm/hierarchical/node_groups.h"
#include "comm/hierarchical/small_all_gather.h"
#include "comm/reduction/partition.h"
#include "comm/reduction/reduce_tree.h"
#include "comm/shm/backend.h"

namespace tutti::comm {
namespace {

// Up to this number of ranks, small tensors use the flat algorithm, which costs less than three sequential steps, and
// all ranks are connected. In larger groups only node leaders are connected, until other ranks own shards.
constexpr int max_flat_ranks = 8;
// Tensors below this size are small.
constexpr std::size_t min_sharded_bytes = std::size_t{16} << 10;
// Larger outputs are broadcast in the node through the staging buffers, whose slots are larger.
constexpr std::size_t max_node_broadcast_bytes = std::size_t{256} << 10;
// In larger groups payloads would cost more than they save.
constexpr int max_ranks_with_payloads = 64;

BackendTraits traits_over(const Backend& p2p_backend) {
  const bool has_payloads = p2p_backend.size() <= max_ranks_with_payloads;
  return {.name = "shared memory + " + p2p_backend.traits().name,
          .inline_payload_bytes = has_payloads ? padded_call_bytes : 0,
          .equal_lengths = has_payloads};
}

std::span<std::byte> bytes_of(const at::Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.data_ptr()), tensor.nbytes()};
}

/// The index of the first flag that is 0; nullopt if all are set.
std::optional<int> first_rank_without(std::span<const std::byte> all) {
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank] == std::byte{0}) return static_cast<int>(rank);
  }
  return std::nullopt;
}

class HierarchicalBackend final : public ForwardingBackend {
 public:
  HierarchicalBackend(const std::shared_ptr<Backend>& p2p_backend, SelectBackend select_for_group,
                      std::shared_ptr<ShmBackend> node, std::shared_ptr<NodeGroups> groups)
      : ForwardingBackend(traits_over(*p2p_backend), p2p_backend),
        select_for_group_(std::move(select_for_group)),
        node_(std::move(node)),
        groups_(std::move(groups)) {}

  std::unique_ptr<PendingAllReduce> start_all_reduce(const Operation& operation, const at::Tensor& flat,
                                                     const std::shared_ptr<const WireCodec>& codec) override {
    const auto location = node_->location_of(flat);
    if (!location || uses_flat_algorithm(flat)) return inner().start_all_reduce(operation, flat, codec);
    return std::make_unique<HierarchicalAllReduce>(groups_, operation, *location, flat, codec,
                                                   node_->next_all_reduce());
  }

  std::unique_ptr<PendingAllGather> start_small_all_gather(const Operation& operation,
                                                           std::span<const std::byte> input) override {
    return std::make_unique<HierarchicalAllGather>(groups_, *node_, operation, input);
  }

  void all_reduce(const Operation& operation, const at::Tensor& flat, ReduceOp op) override {
    if (uses_flat_algorithm(flat)) {
      inner().all_reduce(operation, flat, op);
      return;
    }
    const at::AutoDispatchBelowADInplaceOrView without_autograd;
    // Values are rounded once, at the end: the bits are those of one sum over all ranks.
    const auto wide_dtype = dtype_of_sums(flat.scalar_type());
    const bool is_sharded = flat.nbytes() >= min_sharded_bytes;
    const std::int64_t shard_elements = (flat.numel() + topology().local_world_size - 1) / topology().local_world_size;
    const std::int64_t elements = is_sharded ? shard_elements * topology().local_world_size : flat.numel();
    const bool is_copied = elements != flat.numel() || wide_dtype != flat.scalar_type();
    const at::Tensor whole = is_copied ? at::zeros({elements}, wide_dtype) : flat.view({-1});
    if (is_copied) whole.narrow(0, 0, flat.numel()).copy_(flat.view({-1}));
    const ReduceOp partial_op = op == ReduceOp::mean ? ReduceOp::sum : op;
    if (is_sharded) {
      all_reduce_sharded(operation, whole, partial_op);
    } else {
      all_reduce_on_leaders(operation, whole, partial_op);
    }
    if (op == ReduceOp::mean) whole.div_(size());
    if (is_copied) flat.view({-1}).copy_(whole.narrow(0, 0, flat.numel()));
  }
  // Ranks are numbered node by node, so the concatenated outputs of the nodes are in rank order.
  void all_gather(const Operation& operation, const at::Tensor& output, const at::Tensor& input) override {
    if (size() <= max_flat_ranks) {
      inner().all_gather(operation, output, input);
      return;
    }
    const at::Tensor node_output = at::empty({topology().local_world_size * input.numel()}, input.options());
    groups_->node_subgroup.run([&] { node_->all_gather(operation, node_output, input); });
    const auto gather = [&](Backend& inter_node) { inter_node.all_gather(operation, output, node_output); };
    if (output.nbytes() <= max_node_broadcast_bytes) {
      groups_->run_on_leaders(operation, bytes_of(output), gather);
      return;
    }
    // Each node receives the output once, not once per rank.
    if (groups_->is_node_leader()) groups_->inter_node_subgroup.run([&] { gather(*groups_->inter_node); });
    const SuppressSlowWarning suppress(!groups_->is_node_leader());
    groups_->node_subgroup.run([&] { node_->broadcast(operation, output, 0); });
  }
  void broadcast(const Operation& operation, const at::Tensor& tensor, int root) override {
    if (uses_flat_algorithm(tensor)) {
      inner().broadcast(operation, tensor, root);
      return;
    }
    const int root_node = root / topology().local_world_size;
    const int root_local_rank = root % topology().local_world_size;
    if (topology().local_rank == root_local_rank) {
      groups_->inter_node_subgroup.run([&] { groups_->inter_node->broadcast(operation, tensor, root_node); });
    }
    groups_->node_subgroup.run([&] { node_->broadcast(operation, tensor, root_local_rank); });
  }

  // Shared memory is used on all nodes or on none: nodes with different algorithms would wait for each other.
  at::Tensor allocate(const Operation& operation, std::int64_t bytes, at::Device device) override {
    const at::Tensor memory = groups_->node_subgroup.run([&] { return node_->allocate(operation, bytes, device); });
    const bool shared = bytes == 0 || node_->location_of(memory).has_value();
    const std::byte flag{shared};
    const auto exchange = start_small_all_gather(operation, std::span(&flag, 1));
    if (first_rank_without(exchange->wait())) return inner().allocate(operation, bytes, device);
    return memory;
  }
  std::shared_ptr<Backend> split(const std::vector<int>& members, const std::string& name,
                                 std::chrono::milliseconds timeout) override {
    return select_for_group_(inner().split(members, name, timeout), name, timeout);
  }
  std::shared_ptr<Backend> duplicate(const std::string& name, std::chrono::milliseconds timeout) override;

  bool peer_exited(int rank) const override {
    if (topology().node_of_rank[rank] != topology().node_rank) return inner().peer_exited(rank);
    return node_->peer_exited(rank % topology().local_world_size);
  }

  void close() noexcept override {
    node_->close();
    groups_->inter_node->close();
    inner().close();
  }

 private:
  bool uses_flat_algorithm(const at::Tensor& tensor) const {
    return size() <= max_flat_ranks && tensor.nbytes() < min_sharded_bytes;
  }

  /// The length of `whole` is a multiple of the local world size.
  void all_reduce_sharded(const Operation& operation, const at::Tensor& whole, ReduceOp op) {
    const at::Tensor shard = at::empty({whole.numel() / topology().local_world_size}, whole.options());
    groups_->node_subgroup.run([&] { node_->reduce_scatter(operation, shard, whole, op); });
    groups_->inter_node_subgroup.run([&] { groups_->inter_node->all_reduce(operation, shard, op); });
    groups_->node_subgroup.run([&] { node_->all_gather(operation, whole, shard); });
  }
  void all_reduce_on_leaders(const Operation& operation, const at::Tensor& whole, ReduceOp op) {
    groups_->node_subgroup.run([&] { node_->all_reduce(operation, whole, op); });
    groups_->run_on_leaders(operation, bytes_of(whole),
                            [&](Backend& inter_node) { inter_node.all_reduce(operation, whole, op); });
  }

  SelectBackend select_for_group_;
  std::shared_ptr<ShmBackend> node_;
  std::shared_ptr<NodeGroups> groups_;
};

// Creates the backend on all nodes or on none; then it returns null and sets `reason`. `node` is set on all ranks of a
// node or on none of them.
std::shared_ptr<Backend> make_from_groups(const std::shared_ptr<Backend>& p2p_backend, SelectBackend select_for_group,
                                          std::shared_ptr<ShmBackend> node, std::shared_ptr<Backend> inter_node,
                                          std::chrono::milliseconds timeout, std::string& reason) {
  const Topology& topology = p2p_backend->topology();
  const Operation operation = shm_setup_operation(timeout);
  const Subgroup node_subgroup{.parent_ranks = ranks_of_node(topology)};
  // All ranks of a node wait for another node at the same time: only the node leader warns.
  const Subgroup inter_node_subgroup{.parent_ranks = ranks_across_nodes(topology),
                                     .suppress_slow_warning = topology.local_rank != 0};
  // In a job of this size all ranks exchange messages. A network that does not let them is found here.
  if (p2p_backend->size() <= max_flat_ranks) p2p_backend->connect(timeout);
  std::vector<std::byte> node_flags(static_cast<std::size_t>(topology.num_nodes));
  const auto gather_flags = [&](Backend& leaders, bool shares) {
    const std::byte flag{shares};
    const auto exchange = leaders.start_small_all_gather(operation, std::span(&flag, 1));
    std::ranges::copy(exchange->wait(), node_flags.begin());
  };
  SharedMemory slots;
  if (node) {
    node_subgroup.run([&] {
      slots = create_shared_memory(*node, operation, NodeBroadcast::slots * NodeBroadcast::slot_bytes, reason);
    });
  }
  if (slots.empty()) {
    // The other ranks of this node return without this exchange: they know that their node shares no memory.
    if (topology.local_rank == 0) inter_node_subgroup.run([&] { gather_flags(*inter_node, false); });
    return nullptr;
  }
  auto node_broadcast = std::make_unique<NodeBroadcast>(node->node(), std::move(slots));
  auto groups = std::make_shared<NodeGroups>(NodeGroups{.node = node->node(),
                                                        .node_subgroup = node_subgroup,
                                                        .inter_node = std::move(inter_node),
                                                        .inter_node_subgroup = inter_node_subgroup,
                                                        .node_broadcast = std::move(node_broadcast),
                                                        .pending_sums = {}});
  groups->run_on_leaders(operation, node_flags, [&](Backend& leaders) { gather_flags(leaders, true); });
  if (const auto missing = first_rank_without(node_flags)) {
    reason = "the node of rank " + std::to_string(*missing * topology.local_world_size) + " cannot share memory";
    return nullptr;
  }
  node->node()->set_global_ranks(node_subgroup.parent_ranks);
  return std::make_shared<HierarchicalBackend>(p2p_backend, std::move(select_for_group), std::move(node),
                                               std::move(groups));
}

std::string node_group_name(const std::string& name, const Topology& topology) {
  return name + "/node" + std::to_string(topology.node_rank);
}
std::string inter_node_group_name(const std::string& name, const Topology& topology) {
  return name + "/inter_node" + std::to_string(topology.local_rank);
}

std::shared_ptr<Backend> HierarchicalBackend::duplicate(const std::string& name, std::chrono::milliseconds timeout) {
  const auto p2p_backend = inner().duplicate(name, timeout);
  std::string reason;
  std::shared_ptr<ShmBackend> node;
  groups_->node_subgroup.run([&] { node = node_->duplicate_shm(node_group_name(name, topology()), timeout, reason); });
  auto inter_node = groups_->inter_node_subgroup.run(
      [&] { return groups_->inter_node->duplicate(inter_node_group_name(name, topology()), timeout); });
  if (auto backend =
          make_from_groups(p2p_backend, select_for_group_, std::move(node), std::move(inter_node), timeout, reason)) {
    return backend;
  }
  return select_for_group_(p2p_backend, name + "/p2p", timeout);
}

}  // namespace

bool fits_hierarchy(const Topology& topology) {
  return has_equal_nodes(topology) && topology.local_world_size > 1;
}

bool hierarchy_preserves_bits(const Topology& topology) {
  return fits_hierarchy(topology) && std::has_single_bit(static_cast<unsigned>(topology.local_world_size));
}

std::shared_ptr<Backend> make_hierarchical_backend(const std::shared_ptr<Backend>& p2p_backend,
                                                   SelectBackend select_for_group, const std::string& name,
                                                   std::chrono::milliseconds timeout, std::string& reason) {
  const Topology& topology = p2p_backend->topology();
  const Subgroup node_subgroup{.parent_ranks = ranks_of_node(topology)};
  const auto node_p2p_backend =
      p2p_backend->split(node_subgroup.parent_ranks, node_group_name(name, topology), timeout);
  auto inter_node = p2p_backend->split(ranks_across_nodes(topology), inter_node_group_name(name, topology), timeout);
  std::shared_ptr<ShmBackend> node;
  node_subgroup.run([&] { node = make_shm_backend(node_p2p_backend, select_for_group, timeout, reason); });
  auto backend = make_from_groups(p2p_backend, std::move(select_for_group), std::move(node), std::move(inter_node),
                                  timeout, reason);
  return backend ? backend : p2p_backend;
}

}  // namespace tutti::comm
