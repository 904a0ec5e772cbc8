#include "comm/device/encoded_sums.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <mutex>
#include <optional>
#include <utility>

#include "comm/backend/forwarding_backend.h"
#include "comm/backend/subgroup.h"
#include "comm/backend/topology.h"
#include "comm/device/staged.h"
#include "device/devices.h"
#include "device/side_stream.h"

namespace tutti::comm {
namespace {

/// The groups of one rank. They are created with the first sum, because few programs use a codec. Used by the
/// communicator's queue thread only, except for close().
class EncodedSumGroups {
 public:
  EncodedSumGroups(std::shared_ptr<Backend> device_backend, std::string name)
      : node{.parent_ranks = ranks_of_node(device_backend->topology())},
        inter_node{.parent_ranks = ranks_across_nodes(device_backend->topology())},
        device_backend_(std::move(device_backend)),
        name_(std::move(name)) {}

  const Subgroup node;                       ///< the ranks of this node
  const Subgroup inter_node;                 ///< the ranks with this local rank on all nodes
  std::shared_ptr<Backend> reduce_scatters;  ///< of `node`
  std::shared_ptr<Backend> all_gathers;      ///< of `node`
  std::shared_ptr<Backend> encoded;          ///< of `inter_node`, staged

  /// Every rank must call it, in the order of operations.
  void connect(const Operation& operation) {
    if (reduce_scatters) return;
    const Topology& topology = device_backend_->topology();
    const auto node_name = name_ + "/encoded_node" + std::to_string(topology.node_rank);
    const auto inter_node_name = name_ + "/encoded_inter_node" + std::to_string(topology.local_rank);
    const auto split = [&](const Subgroup& group, const std::string& name) {
      return group.run([&] { return device_backend_->split(group.parent_ranks, name, operation.timeout); });
    };
    auto first = split(node, node_name + "/reduce_scatter");
    auto second = split(node, node_name + "/all_gather");
    // Sums of host memory go through the host's backend below it.
    auto third = make_staged_backend(split(inter_node, inter_node_name));
    const std::lock_guard lock(mutex_);
    reduce_scatters = std::move(first);
    all_gathers = std::move(second);
    encoded = std::move(third);
    if (is_closed_) close_all();
  }
  void close() noexcept {
    const std::lock_guard lock(mutex_);
    is_closed_ = true;
    close_all();
  }

 private:
  void close_all() noexcept {
    for (const auto& backend : {encoded, reduce_scatters, all_gathers}) {
      if (backend) backend->close();
    }
  }

  std::shared_ptr<Backend> device_backend_;
  std::string name_;
  std::mutex mutex_;
  bool is_closed_ = false;
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
    groups_->connect(operation_);
    before_.run([&] { reduce_in_node(); });
    after_.record_use(whole_);
    after_.record_use(shard_);
    groups_->inter_node.run([&] { inter_node_sum_->finish_reduce_scatter(scale); });
  }
  void wait() override {
    groups_->inter_node.run([&] { inter_node_sum_->wait(); });
    after_.run([&] {
      const at::AutoDispatchBelowADInplaceOrView without_autograd;
      inter_node_sum_->block_current_stream();
      groups_->node.run([&] { groups_->all_gathers->all_gather(operation_, whole_, shard_); });
      if (!whole_.is_same(flat_)) flat_.copy_(whole_.narrow(0, 0, flat_.numel()));
      completed_.emplace(devices::StreamEvent::on_current_stream(flat_.device()));
    });
  }
  void block_current_stream() const override { completed_->block_current_stream(); }
  std::int64_t bytes_sent() const override {
    if (!inter_node_sum_) return 0;
    const auto others = static_cast<std::int64_t>(groups_->node.parent_ranks.size()) - 1;
    return inter_node_sum_->bytes_sent() + 2 * others * static_cast<std::int64_t>(shard_.nbytes());
  }

 private:
  /// On the side stream `before_`.
  void reduce_in_node() {
    const at::AutoDispatchBelowADInplaceOrView without_autograd;
    computed_.block_current_stream();
    const auto ranks = static_cast<std::int64_t>(groups_->node.parent_ranks.size());
    const std::int64_t share = (flat_.numel() + ranks - 1) / ranks;
    whole_ = flat_;
    if (share * ranks != flat_.numel()) {
      whole_ = at::zeros({share * ranks}, flat_.options());
      whole_.narrow(0, 0, flat_.numel()).copy_(flat_);
    }
    shard_ = at::empty({share}, flat_.options());
    groups_->node.run([&] { groups_->reduce_scatters->reduce_scatter(operation_, shard_, whole_, ReduceOp::sum); });
    inter_node_sum_ =
        groups_->inter_node.run([&] { return groups_->encoded->start_all_reduce(operation_, shard_, codec_); });
  }

  std::shared_ptr<EncodedSumGroups> groups_;
  Operation operation_;
  at::Tensor flat_;
  std::shared_ptr<const WireCodec> codec_;
  devices::StreamEvent computed_;  // after the program's kernels that wrote `flat_`
  at::Tensor whole_;               // `flat_`, or a copy that is padded to a multiple of the ranks of the node
  at::Tensor shard_;
  std::unique_ptr<PendingAllReduce> inter_node_sum_;
  devices::SideStream before_, after_;  // the steps before and after the sum between nodes
  std::optional<devices::StreamEvent> completed_;
};

class EncodedSumBackend final : public ForwardingBackend {
 public:
  EncodedSumBackend(const std::shared_ptr<Backend>& device_backend, const std::string& name)
      : ForwardingBackend(device_backend->traits(), device_backend),
        groups_(std::make_shared<EncodedSumGroups>(device_backend, name)) {}

  std::unique_ptr<PendingAllReduce> start_all_reduce(const Operation& operation, const at::Tensor& flat,
                                                     const std::shared_ptr<const WireCodec>& codec) override {
    if (!codec || !devices::is_accelerator(flat.device()) || flat.numel() == 0) {
      return inner().start_all_reduce(operation, flat, codec);
    }
    return std::make_unique<EncodedAllReduce>(groups_, operation, flat, codec);
  }
  std::shared_ptr<Backend> split(const std::vector<int>& members, const std::string& name,
                                 std::chrono::milliseconds timeout) override {
    return inner().split(members, name, timeout);
  }
  std::shared_ptr<Backend> duplicate(const std::string& name, std::chrono::milliseconds timeout) override {
    return add_encoded_sums(inner().duplicate(name, timeout), name);
  }
  void close() noexcept override {
    groups_->close();
    inner().close();
  }

 private:
  std::shared_ptr<EncodedSumGroups> groups_;
};

}  // namespace

std::shared_ptr<Backend> add_encoded_sums(const std::shared_ptr<Backend>& device_backend, const std::string& name) {
  if (!has_equal_nodes(device_backend->topology())) return device_backend;
  return std::make_shared<EncodedSumBackend>(device_backend, name);
}

}  // namespace tutti::comm
