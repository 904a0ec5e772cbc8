#include "comm/device/encoded_sums.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <bit>
#include <optional>
#include <utility>

#include "comm/backend/forwarding_backend.h"
#include "comm/backend/subgroup.h"
#include "comm/device/staged.h"
#include "device/devices.h"
#include "device/side_stream.h"

namespace tutti::comm {
namespace {

/// The groups of one rank.
struct EncodedSumGroups {
  Subgroup node_subgroup;
  std::shared_ptr<Backend> reduce_scatters;  ///< the ranks of this node
  std::shared_ptr<Backend> all_gathers;      ///< the ranks of this node
  Subgroup inter_node_subgroup;
  std::shared_ptr<Backend> inter_node;  ///< the ranks with this local rank on all nodes; staged
};

class EncodedAllReduce final : public PendingAllReduce {
 public:
  EncodedAllReduce(std::shared_ptr<EncodedSumGroups> groups, Operation operation, const at::Tensor& flat,
                   std::shared_ptr<const WireCodec> codec)
      : groups_(std::move(groups)),
        operation_(std::move(operation)),
        flat_(flat.view({-1})),
        codec_(std::move(codec)),
        computed_(devices::StreamEvent::on_current_stream(flat.device())),
        before_(flat.device()),
        after_(flat.device()) {
    before_.record_use(flat_);
    after_.record_use(flat_);
  }

  void finish_reduce_scatter(double scale) override {
    before_.run([&] { reduce_in_node(); });
    after_.record_use(whole_);
    after_.record_use(shard_);
    groups_->inter_node_subgroup.run([&] { inter_node_sum_->finish_reduce_scatter(scale / prescale_); });
  }
  void wait() override {
    groups_->inter_node_subgroup.run([&] { inter_node_sum_->wait(); });
    after_.run([&] {
      const at::AutoDispatchBelowADInplaceOrView without_autograd;
      inter_node_sum_->block_current_stream();
      groups_->node_subgroup.run([&] { groups_->all_gathers->all_gather(operation_, whole_, shard_); });
      if (!whole_.is_same(flat_)) flat_.copy_(whole_.narrow(0, 0, flat_.numel()));
      completed_.emplace(devices::StreamEvent::on_current_stream(flat_.device()));
    });
  }
  void block_current_stream() const override { completed_->block_current_stream(); }
  std::int64_t bytes_sent() const override {
    if (!inter_node_sum_) return 0;
    const auto others = static_cast<std::int64_t>(groups_->node_subgroup.parent_ranks.size()) - 1;
    return inter_node_sum_->bytes_sent() + 2 * others * static_cast<std::int64_t>(shard_.nbytes());
  }

 private:
  /// On the side stream `before_`.
  void reduce_in_node() {
    const at::AutoDispatchBelowADInplaceOrView without_autograd;
    computed_.block_current_stream();
    const auto ranks = static_cast<std::int64_t>(groups_->node_subgroup.parent_ranks.size());
    const std::int64_t share = (flat_.numel() + ranks - 1) / ranks;
    whole_ = flat_;
    if (share * ranks != flat_.numel()) {
      whole_ = at::zeros({share * ranks}, flat_.options());
      whole_.narrow(0, 0, flat_.numel()).copy_(flat_);
    }
    shard_ = at::empty({share}, flat_.options());
    groups_->node_subgroup.run(
        [&] { groups_->reduce_scatters->reduce_scatter(operation_, shard_, whole_, ReduceOp::sum); });
    // As in HierarchicalAllReduce: the encoding of the node's sum must not overflow.
    prescale_ = 1.0 / static_cast<double>(std::bit_ceil(static_cast<std::uint64_t>(ranks)));
    shard_.mul_(prescale_);
    inter_node_sum_ = groups_->inter_node_subgroup.run(
        [&] { return groups_->inter_node->start_all_reduce(operation_, shard_, codec_); });
  }

  std::shared_ptr<EncodedSumGroups> groups_;
  Operation operation_;
  at::Tensor flat_;
  std::shared_ptr<const WireCodec> codec_;
  devices::StreamEvent computed_;  // after the program's kernels that wrote `flat_`
  at::Tensor whole_;  // `flat_`, or a copy that is padded to a multiple of the ranks of the node
  at::Tensor shard_;
  double prescale_ = 1;
  std::unique_ptr<PendingAllReduce> inter_node_sum_;
  devices::SideStream before_, after_;  // the steps before and after the sum between nodes
  std::optional<devices::StreamEvent> completed_;
};

class EncodedSumBackend final : public ForwardingBackend {
 public:
  EncodedSumBackend(const std::shared_ptr<Backend>& device_backend, std::shared_ptr<Backend> host_backend,
                    std::shared_ptr<EncodedSumGroups> groups)
      : ForwardingBackend(device_backend->traits(), device_backend),
        host_backend_(std::move(host_backend)),
        groups_(std::move(groups)) {}

  std::unique_ptr<PendingAllReduce> start_all_reduce(const Operation& operation, const at::Tensor& flat,
                                                     const std::shared_ptr<const WireCodec>& codec) override {
    if (!codec || !devices::is_accelerator(flat.device()) || flat.numel() == 0) {
      return inner().start_all_reduce(operation, flat, codec);
    }
    return std::make_unique<EncodedAllReduce>(groups_, operation, flat, codec);
  }
  at::Tensor allocate(const Operation& operation, std::int64_t bytes, at::Device device) override {
    at::Tensor memory = inner().allocate(operation, bytes, device);
    if (!devices::is_accelerator(device)) return memory;
    // Connects the groups here, where all ranks take part.
    for (Backend* const node : {groups_->reduce_scatters.get(), groups_->all_gathers.get()}) {
      groups_->node_subgroup.run([&] { return node->allocate(operation, 0, device); });
    }
    groups_->inter_node_subgroup.run([&] { groups_->inter_node->connect(); });
    return memory;
  }
  std::shared_ptr<Backend> split(const std::vector<int>& members, const std::string& name,
                                 std::chrono::milliseconds timeout) override {
    return inner().split(members, name, timeout);
  }
  std::shared_ptr<Backend> duplicate(const std::string& name, std::chrono::milliseconds timeout) override {
    return add_encoded_sums(inner().duplicate(name, timeout), host_backend_, name, timeout);
  }
  void close() noexcept override {
    groups_->inter_node->close();
    groups_->reduce_scatters->close();
    groups_->all_gathers->close();
    inner().close();
  }

 private:
  std::shared_ptr<Backend> host_backend_;
  std::shared_ptr<EncodedSumGroups> groups_;
};

bool has_equal_nodes(const Topology& topology) {
  const auto ranks = static_cast<int>(topology.node_of_rank.size());
  if (topology.num_nodes < 2 || ranks != topology.num_nodes * topology.local_world_size) return false;
  for (int rank = 0; rank < ranks; ++rank) {
    if (topology.node_of_rank[static_cast<std::size_t>(rank)] != rank / topology.local_world_size) return false;
  }
  return true;
}

}  // namespace

std::shared_ptr<Backend> add_encoded_sums(const std::shared_ptr<Backend>& device_backend,
                                          const std::shared_ptr<Backend>& host_backend, const std::string& name,
                                          std::chrono::milliseconds timeout) {
  const Topology& topology = device_backend->topology();
  if (!has_equal_nodes(topology)) return device_backend;
  auto groups = std::make_shared<EncodedSumGroups>();
  for (int local = 0; local < topology.local_world_size; ++local) {
    groups->node_subgroup.parent_ranks.push_back(topology.node_rank * topology.local_world_size + local);
  }
  for (int node = 0; node < topology.num_nodes; ++node) {
    groups->inter_node_subgroup.parent_ranks.push_back(node * topology.local_world_size + topology.local_rank);
  }
  const auto node_name = name + "/node" + std::to_string(topology.node_rank);
  const auto& node = groups->node_subgroup.parent_ranks;
  groups->reduce_scatters = device_backend->split(node, node_name + "/reduce_scatter", timeout);
  groups->all_gathers = device_backend->split(node, node_name + "/all_gather", timeout);
  const auto inter_node_name = name + "/inter_node" + std::to_string(topology.local_rank) + "/encoded";
  groups->inter_node = make_staged_backend(
      host_backend->split(groups->inter_node_subgroup.parent_ranks, inter_node_name, timeout));
  return std::make_shared<EncodedSumBackend>(device_backend, host_backend, std::move(groups));
}

}  // namespace tutti::comm
