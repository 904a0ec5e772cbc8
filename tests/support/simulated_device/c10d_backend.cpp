#include "support/simulated_device/c10d_backend.h"

#include <ATen/ATen.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>

#include <numeric>
#include <stdexcept>
#include <utility>

#include "support/simulated_device/runtime.h"

namespace tutti::test::simulated {
namespace {

class Collective final : public c10d::Work {
 public:
  Collective(std::vector<at::Tensor> tensors, const c10::Stream& stream)
      : device_(tensors.at(0).device()), completed_(type), tensors_(std::move(tensors)) {
    completed_.record(stream);
    const c10::StreamGuard guard(stream);
    future_ = c10::make_intrusive<at::ivalue::Future>(c10::ListType::create(c10::TensorType::get()),
                                                      std::vector<c10::Device>{device_});
    future_->markCompleted(at::IValue(tensors_));
  }
  bool wait(std::chrono::milliseconds = kNoTimeout) override {
    completed_.block(current_stream(device_.index()));
    tensors_.clear();
    return true;
  }
  bool isCompleted() override { return completed_.query(); }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }

 private:
  c10::Device device_;
  c10::Event completed_;
  std::vector<at::Tensor> tensors_;  // kept for the backend's stream until wait()
  c10::intrusive_ptr<at::ivalue::Future> future_;
};

at::Tensor seen_by_kernels(const at::Tensor& tensor) {
  TORCH_CHECK(tensor.is_privateuseone() && tensor.is_contiguous(),
              "simulated nccl: needs a contiguous tensor on the simulated device");
  return at::from_blob(as_seen_by_kernels(tensor.const_data_ptr()), tensor.sizes(),
                       at::TensorOptions(tensor.scalar_type()));
}

std::string describe(const std::string& collective, const at::Tensor& tensor) {
  return collective + " of " + std::to_string(tensor.nbytes()) + " bytes";
}

at::Tensor reduced(const std::map<int, SharedGroup::Part>& parts, c10d::ReduceOp::RedOpType op) {
  at::Tensor result = parts.at(0).input.clone();
  for (int rank = 1; rank < static_cast<int>(parts.size()); ++rank) {
    const at::Tensor& part = parts.at(rank).input;
    switch (op) {
      case c10d::ReduceOp::SUM:
        result.add_(part);
        break;
      case c10d::ReduceOp::PRODUCT:
        result.mul_(part);
        break;
      case c10d::ReduceOp::MIN:
        result = at::minimum(result, part);
        break;
      case c10d::ReduceOp::MAX:
        result = at::maximum(result, part);
        break;
      default:
        throw std::runtime_error("simulated nccl: this reduction is not supported");
    }
  }
  return result;
}

void require_reducible(const at::Tensor& tensor, c10d::ReduceOp::RedOpType op) {
  const bool known = op == c10d::ReduceOp::SUM || op == c10d::ReduceOp::PRODUCT || op == c10d::ReduceOp::MIN ||
                     op == c10d::ReduceOp::MAX;
  const auto dtype = tensor.scalar_type();
  TORCH_CHECK(known && !at::isComplexType(dtype) && dtype != at::kShort && dtype != at::kBool,
              "simulated nccl: NCCL does not have this reduction of ", dtype);
}

}  // namespace

void SharedGroup::run(int rank, const std::string& collective, Part part, const Compute& compute) {
  const at::NoGradGuard no_grad;
  std::unique_lock lock(mutex_);
  if (aborted_.contains(rank)) return;
  if (parts_.empty()) collective_ = collective;
  if (collective_ != collective) throw std::runtime_error("simulated nccl: " + collective_ + " meets " + collective);
  parts_[rank] = std::move(part);
  const auto round = round_;
  if (parts_.size() == size_) {
    compute(parts_);
    parts_.clear();
    ++round_;
    changed_.notify_all();
    return;
  }
  changed_.wait(lock, [&] { return round_ != round || aborted_.contains(rank); });
  if (round_ == round) parts_.erase(rank);
}

void SharedGroup::abort(int rank) {
  const std::lock_guard lock(mutex_);
  aborted_.insert(rank);
  changed_.notify_all();
}

std::shared_ptr<SharedGroup> SharedGroups::of(const std::string& group, int size) {
  const std::lock_guard lock(mutex_);
  auto& shared = all_[group];
  if (!shared) shared = std::make_shared<SharedGroup>(size);
  return shared;
}

Backend::Backend(std::shared_ptr<SharedGroup> shared, int rank, int size, int device)
    : c10d::Backend(rank, size), group_(std::move(shared)), stream_(pool_stream(device)) {}

Backend::~Backend() {
  if (!ended_) group_->abort(getRank());
}

void Backend::shutdown() {
  wait_for(stream_, "shutdown");
  ended_ = true;
}

void Backend::abort() {
  group_->abort(getRank());
  ended_ = true;
}

Backend::WorkPtr Backend::queue(const std::string& collective, const at::Tensor& output, const at::Tensor& input,
                                SharedGroup::Compute compute, std::vector<std::int64_t> sent) {
  SharedGroup::Part part{.output = seen_by_kernels(output), .input = seen_by_kernels(input), .sent = std::move(sent)};
  c10::Event ready(type);
  ready.record(current_stream(input.device().index()));
  ready.block(stream_);
  launch(stream_, [shared = group_, rank = getRank(), collective, part = std::move(part),
                   compute = std::move(compute)] { shared->run(rank, collective, part, compute); });
  return c10::make_intrusive<Collective>(std::vector<at::Tensor>{output, input}, stream_);
}

Backend::WorkPtr Backend::allreduce(std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions& options) {
  const auto op = options.reduceOp.op_;
  require_reducible(tensors.at(0), op);
  return queue(describe("allreduce", tensors[0]), tensors[0], tensors[0], [op](auto& parts) {
    const at::Tensor result = reduced(parts, op);
    for (auto& [rank, part] : parts) part.output.copy_(result);
  });
}

Backend::WorkPtr Backend::broadcast(std::vector<at::Tensor>& tensors, const c10d::BroadcastOptions& options) {
  const auto root = static_cast<int>(options.rootRank);
  return queue(describe("broadcast from " + std::to_string(root), tensors.at(0)), tensors.at(0), tensors[0],
               [root](auto& parts) {
                 for (auto& [rank, part] : parts) {
                   if (rank != root) part.output.copy_(parts.at(root).input);
                 }
               });
}

Backend::WorkPtr Backend::_allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions&) {
  TORCH_CHECK(output.numel() == input.numel() * getSize(), "simulated nccl: wrong size of the gathered tensor");
  return queue(describe("all_gather", input), output, input, [](auto& parts) {
    std::vector<at::Tensor> inputs;
    for (auto& [rank, part] : parts) inputs.push_back(part.input.flatten());
    const at::Tensor all = at::cat(inputs);
    for (auto& [rank, part] : parts) part.output.view({-1}).copy_(all);
  });
}

Backend::WorkPtr Backend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                               const c10d::ReduceScatterOptions& options) {
  const auto op = options.reduceOp.op_;
  require_reducible(input, op);
  TORCH_CHECK(input.numel() == output.numel() * getSize(), "simulated nccl: wrong size of the scattered tensor");
  return queue(describe("reduce_scatter", input), output, input, [op](auto& parts) {
    const at::Tensor result = reduced(parts, op).flatten();
    for (auto& [rank, part] : parts) {
      const auto length = part.output.numel();
      part.output.view({-1}).copy_(result.narrow(0, rank * length, length));
    }
  });
}

Backend::WorkPtr Backend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                        std::vector<std::int64_t>& output_lengths,
                                        std::vector<std::int64_t>& input_lengths, const c10d::AllToAllOptions&) {
  const auto lengths_or_equal = [size = getSize()](const std::vector<std::int64_t>& lengths, const at::Tensor& tensor) {
    if (!lengths.empty()) return lengths;
    return std::vector<std::int64_t>(static_cast<std::size_t>(size), tensor.size(0) / size);
  };
  const auto received = lengths_or_equal(output_lengths, output);
  TORCH_CHECK(std::accumulate(received.begin(), received.end(), std::int64_t{0}) == output.size(0),
              "simulated nccl: wrong lengths of an all-to-all");
  return queue(
      "all_to_all", output, input,
      [](auto& parts) {
        std::map<int, std::int64_t> begin;  // of the next part of each rank's output
        for (auto& [from, part] : parts) {
          std::int64_t offset = 0;
          for (auto& [to, peer] : parts) {
            const std::int64_t length = part.sent.at(static_cast<std::size_t>(to));
            peer.output.narrow(0, begin[to], length).copy_(part.input.narrow(0, offset, length));
            begin[to] += length;
            offset += length;
          }
        }
      },
      lengths_or_equal(input_lengths, input));
}

}  // namespace tutti::test::simulated
