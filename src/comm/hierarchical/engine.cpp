#include "comm/hierarchical/engine.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <bit>
#include <mutex>
#include <optional>
#include <utility>

#include "comm/engine/forwarding_engine.h"
#include "comm/engine/operation_here.h"
#include "comm/hierarchical/exchange.h"
#include "comm/hierarchical/levels.h"
#include "comm/hierarchical/sum.h"
#include "comm/shared/engine.h"
#include "comm/sums/slices.h"

namespace tutti::comm {
namespace {

// Few ranks tell one another small things by a message to every rank, which costs less than three steps one after the
// other, and are all connected. Of many ranks only the first ones of nodes are, until others own slices.
constexpr int most_ranks_told_straight = 8;
// Less than this is small.
constexpr std::size_t worth_slices = std::size_t{16} << 10;
// More goes through the larger slots of a broadcast.
constexpr std::size_t most_handed_out = std::size_t{256} << 10;

RankGroup ranks_of_node(const NodeLayout& layout) {
  RankGroup group;
  for (int local = 0; local < layout.local_size; ++local) {
    group.members.push_back(layout.node_rank * layout.local_size + local);
  }
  return group;
}

// All ranks of a node wait for another node together: its first one tells.
RankGroup ranks_across(const NodeLayout& layout) {
  RankGroup group{.members = {}, .is_told_elsewhere = layout.local_rank != 0};
  for (int node = 0; node < layout.num_nodes; ++node) {
    group.members.push_back(node * layout.local_size + layout.local_rank);
  }
  return group;
}

std::span<std::byte> bytes_of(const at::Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.data_ptr()), tensor.nbytes()};
}

/// The first one of `all`, each of which says 1 for yes and 0 for no, that says no.
std::optional<int> first_without(std::span<const std::byte> all) {
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank] == std::byte{0}) return static_cast<int>(rank);
  }
  return std::nullopt;
}

class HierarchicalEngine final : public ForwardingEngine {
 public:
  HierarchicalEngine(const std::shared_ptr<Engine>& messages, ChooseEngine for_groups,
                     std::shared_ptr<SharedMemoryEngine> node, std::shared_ptr<Levels> levels)
      : ForwardingEngine(messages),
        for_groups_(std::move(for_groups)),
        node_(std::move(node)),
        levels_(std::move(levels)),
        name_("shared memory + " + messages->name()) {}

  const std::string& name() const override { return name_; }
  /// Of other nodes nothing is known here.
  bool stands_still(bool still) noexcept override { return node_->stands_still(still); }

  std::unique_ptr<PendingSum> start_sum(const Operation& operation, const at::Tensor& flat,
                                        const std::shared_ptr<const WireCodec>& codec) override {
    const auto place = node_->place_of(flat);
    if (!place || goes_straight(flat)) return below().start_sum(operation, flat, codec);
    return std::make_unique<HierarchicalSum>(levels_, operation, *place, flat, codec, node_->next_sum());
  }

  std::unique_ptr<PendingExchange> start_exchange(const Operation& operation,
                                                  std::span<const std::byte> mine) override {
    return std::make_unique<HierarchicalExchange>(levels_, *node_, operation, mine);
  }

  void all_reduce(const Operation& operation, const at::Tensor& flat, ReduceOp op) override {
    if (goes_straight(flat)) {
      below().all_reduce(operation, flat, op);
      return;
    }
    const at::AutoDispatchBelowADInplaceOrView without_autograd;
    const auto dtype = flat.scalar_type();
    // Narrow numbers are rounded once, at the end: as if all ranks' versions were added at once.
    const auto wide = dtype == at::kHalf || dtype == at::kBFloat16 ? at::kFloat : dtype;
    const bool in_slices = flat.nbytes() >= worth_slices;
    const std::int64_t share = (flat.numel() + layout().local_size - 1) / layout().local_size;
    const at::Tensor whole = at::zeros({in_slices ? share * layout().local_size : flat.numel()}, wide);
    whole.narrow(0, 0, flat.numel()).copy_(flat.view({-1}));
    const ReduceOp part = op == ReduceOp::mean ? ReduceOp::sum : op;
    if (in_slices) {
      reduce_slices(operation, whole, part);
    } else {
      reduce_whole(operation, whole, part);
    }
    if (op == ReduceOp::mean) whole.div_(size());
    flat.view({-1}).copy_(whole.narrow(0, 0, flat.numel()));
  }
  // Ranks count node by node, so that the nodes' parts one behind the other are those of all ranks.
  void all_gather(const Operation& operation, const at::Tensor& output, const at::Tensor& input) override {
    if (size() <= most_ranks_told_straight) {
      below().all_gather(operation, output, input);
      return;
    }
    const at::Tensor of_node = at::empty({layout().local_size * input.numel()}, input.options());
    levels_->in_node([&] { node_->all_gather(operation, of_node, input); });
    const auto gather = [&](Engine& across) { across.all_gather(operation, output, of_node); };
    if (output.nbytes() <= most_handed_out) {
      levels_->between_first_ranks(operation, bytes_of(output), gather);
      return;
    }
    // Over the network once for a node, not once for a rank.
    if (levels_->is_first_of_node()) levels_->across_ranks.run([&] { gather(*levels_->across); });
    const ToldElsewhere quiet(!levels_->is_first_of_node());
    levels_->in_node([&] { node_->broadcast(operation, output, 0); });
  }
  void broadcast(const Operation& operation, const at::Tensor& tensor, int root) override {
    if (goes_straight(tensor)) {
      below().broadcast(operation, tensor, root);
      return;
    }
    const int root_node = root / layout().local_size;
    const int root_place = root % layout().local_size;
    if (layout().local_rank == root_place) {
      levels_->across_ranks.run([&] { levels_->across->broadcast(operation, tensor, root_node); });
    }
    levels_->in_node([&] { node_->broadcast(operation, tensor, root_place); });
  }

  // In shared memory on all nodes or on none: a node of its own kind would wait for another sum than the others.
  at::Tensor allocate(const Operation& operation, std::int64_t bytes) override {
    const at::Tensor memory = levels_->in_node([&] { return node_->allocate(operation, bytes); });
    const bool shared = bytes == 0 || node_->place_of(memory).has_value();
    const std::byte said{shared};
    const auto exchange = start_exchange(operation, std::span(&said, 1));
    if (first_without(exchange->finish())) return below().allocate(operation, bytes);
    // Here, where all ranks are, and not in a step of training.
    if (may_own_some(static_cast<std::size_t>(bytes), layout().local_rank)) levels_->connect_across();
    return memory;
  }
  std::shared_ptr<Engine> connect_again(const std::vector<int>& members, const std::string& name,
                                        std::chrono::milliseconds timeout) override {
    return for_groups_(below().connect_again(members, name, timeout), name, timeout);
  }
  std::shared_ptr<Engine> duplicate(const std::string& name, std::chrono::milliseconds timeout) override;

  bool is_gone(int rank) const override {
    if (layout().node_of_rank[rank] != layout().node_rank) return below().is_gone(rank);
    return node_->is_gone(rank % layout().local_size);
  }

  void connect() override {
    const bool few = size() <= most_ranks_told_straight;
    if (few) below().connect();
    if (few || levels_->is_first_of_node()) levels_->connect_across();
  }
  void close() noexcept override {
    node_->close();
    levels_->across->close();
    below().close();
  }

 private:
  bool goes_straight(const at::Tensor& tensor) const {
    return size() <= most_ranks_told_straight && tensor.nbytes() < worth_slices;
  }

  /// `whole` has a part of equal length for each rank of the node.
  void reduce_slices(const Operation& operation, const at::Tensor& whole, ReduceOp op) {
    const at::Tensor slice = at::empty({whole.numel() / layout().local_size}, whole.options());
    levels_->in_node([&] { node_->reduce_scatter(operation, slice, whole, op); });
    levels_->across_ranks.run([&] { levels_->across->all_reduce(operation, slice, op); });
    levels_->in_node([&] { node_->all_gather(operation, whole, slice); });
  }
  void reduce_whole(const Operation& operation, const at::Tensor& whole, ReduceOp op) {
    levels_->in_node([&] { node_->all_reduce(operation, whole, op); });
    levels_->between_first_ranks(operation, bytes_of(whole),
                                 [&](Engine& across) { across.all_reduce(operation, whole, op); });
  }

  ChooseEngine for_groups_;
  std::shared_ptr<SharedMemoryEngine> node_;
  std::shared_ptr<Levels> levels_;
  std::string name_;
};

// On all nodes or on none: null, and `reason` says why. All ranks of a node know whether it shares memory.
std::shared_ptr<Engine> join_levels(const std::shared_ptr<Engine>& messages, ChooseEngine for_groups,
                                    std::shared_ptr<SharedMemoryEngine> node, std::shared_ptr<Engine> across,
                                    std::chrono::milliseconds timeout, std::string& reason) {
  const NodeLayout& layout = messages->layout();
  const Operation sharing = sharing_memory(timeout);
  const RankGroup node_ranks = ranks_of_node(layout);
  const RankGroup across_ranks = ranks_across(layout);
  std::vector<std::byte> sharing_nodes(static_cast<std::size_t>(layout.num_nodes));
  const auto ask_nodes = [&](Engine& first_ranks, bool mine) {
    const std::byte said{mine};
    const auto exchange = first_ranks.start_exchange(sharing, std::span(&said, 1));
    std::ranges::copy(exchange->finish(), sharing_nodes.begin());
  };
  SharedMemory slots;
  if (node) {
    node_ranks.run(
        [&] { slots = share_memory(*node, sharing, SharedHandOut::slots * SharedHandOut::slot_bytes, reason); });
  }
  if (slots.empty()) {
    // The others of this node know.
    if (layout.local_rank == 0) across_ranks.run([&] { ask_nodes(*across, false); });
    return nullptr;
  }
  auto hand_out = std::make_unique<SharedHandOut>(node->node(), std::move(slots));
  auto levels = std::make_shared<Levels>(Levels{.messages = messages,
                                                .node = node->node(),
                                                .node_ranks = node_ranks,
                                                .across = std::move(across),
                                                .across_ranks = across_ranks,
                                                .hand_out = std::move(hand_out),
                                                .between = {}});
  levels->between_first_ranks(sharing, sharing_nodes, [&](Engine& first_ranks) { ask_nodes(first_ranks, true); });
  if (const auto without = first_without(sharing_nodes)) {
    reason = "the node of rank " + std::to_string(*without * layout.local_size) + " cannot share memory";
    return nullptr;
  }
  node->node()->call_ranks(node_ranks.members);
  return std::make_shared<HierarchicalEngine>(messages, std::move(for_groups), std::move(node), std::move(levels));
}

std::string name_of_node(const std::string& name, const NodeLayout& layout) {
  return name + "/node" + std::to_string(layout.node_rank);
}
std::string name_across(const std::string& name, const NodeLayout& layout) {
  return name + "/across" + std::to_string(layout.local_rank);
}

std::shared_ptr<Engine> HierarchicalEngine::duplicate(const std::string& name, std::chrono::milliseconds timeout) {
  const auto messages = below().duplicate(name, timeout);
  std::string reason;
  std::shared_ptr<SharedMemoryEngine> node;
  levels_->in_node([&] { node = node_->share_again(name_of_node(name, layout()), timeout, reason); });
  auto across =
      levels_->across_ranks.run([&] { return levels_->across->duplicate(name_across(name, layout()), timeout); });
  if (auto engine = join_levels(messages, for_groups_, std::move(node), std::move(across), timeout, reason)) {
    return engine;
  }
  return for_groups_(messages, name + "/without", timeout);
}

}  // namespace

bool fits_hierarchy(const NodeLayout& layout) {
  if (layout.num_nodes < 2 || layout.local_size < 2) return false;
  const auto ranks = static_cast<int>(layout.node_of_rank.size());
  if (ranks != layout.num_nodes * layout.local_size) return false;
  for (int rank = 0; rank < ranks; ++rank) {
    if (layout.node_of_rank[rank] != rank / layout.local_size) return false;
  }
  return true;
}

bool hierarchy_keeps_bits(const NodeLayout& layout) {
  return fits_hierarchy(layout) && std::has_single_bit(static_cast<unsigned>(layout.local_size));
}

std::shared_ptr<Engine> make_hierarchical_engine(const std::shared_ptr<Engine>& messages, ChooseEngine for_groups,
                                                 const std::string& name, std::chrono::milliseconds timeout,
                                                 std::string& reason) {
  const NodeLayout& layout = messages->layout();
  const RankGroup node_ranks = ranks_of_node(layout);
  const auto node_messages = messages->connect_again(node_ranks.members, name_of_node(name, layout), timeout);
  auto across = messages->connect_again(ranks_across(layout).members, name_across(name, layout), timeout);
  std::shared_ptr<SharedMemoryEngine> node;
  node_ranks.run([&] { node = make_shared_memory_engine(node_messages, for_groups, timeout, reason); });
  auto engine = join_levels(messages, std::move(for_groups), std::move(node), std::move(across), timeout, reason);
  return engine ? engine : messages;
}

}  // namespace tutti::comm
