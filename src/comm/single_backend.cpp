#include "comm/single_backend.h"

#include <ATen/ops/empty.h>

namespace tutti::comm {
namespace {

class SingleAllReduce final : public PendingAllReduce {
 public:
  explicit SingleAllReduce(at::Tensor flat) : flat_(std::move(flat)) {}
  void finish_reduce_scatter(double scale) override {
    if (scale != 1) flat_.mul_(scale);
  }
  void wait() override {}
  std::int64_t bytes_sent() const override { return 0; }

 private:
  at::Tensor flat_;
};

class SingleAllGather final : public PendingAllGather {
 public:
  explicit SingleAllGather(std::span<const std::byte> block) : block_(block.begin(), block.end()) {}
  std::span<const std::byte> wait() override { return block_; }

 private:
  std::vector<std::byte> block_;
};

class SingleBackend final : public Backend {
 public:
  // The identity works on every device.
  SingleBackend() : Backend({.name = "single", .all_devices = true}, 0, Topology()) {}

  std::unique_ptr<PendingAllReduce> start_all_reduce(const Operation&, const at::Tensor& flat,
                                                     const std::shared_ptr<const WireCodec>&) override {
    return std::make_unique<SingleAllReduce>(flat);
  }
  std::unique_ptr<PendingAllGather> start_small_all_gather(const Operation&,
                                                           std::span<const std::byte> block) override {
    return std::make_unique<SingleAllGather>(block);
  }

  void all_reduce(const Operation&, const at::Tensor&, ReduceOp) override {}
  void all_gather(const Operation&, const at::Tensor& output, const at::Tensor& input) override { copy(output, input); }
  void reduce_scatter(const Operation&, const at::Tensor& output, const at::Tensor& input, ReduceOp) override {
    copy(output, input);
  }
  void broadcast(const Operation&, const at::Tensor&, int) override {}
  void all_to_all_v(const Operation&, const std::vector<at::Tensor>& outputs, const std::vector<at::Tensor>& inputs,
                    std::size_t) override {
    copy(outputs.front(), inputs.front());
  }

  at::Tensor allocate(const Operation&, std::int64_t bytes, at::Device device) override {
    return at::empty({bytes}, at::TensorOptions(at::kByte).device(device));
  }
  std::shared_ptr<Backend> split(const std::vector<int>&, const std::string&, std::chrono::milliseconds) override {
    return std::make_shared<SingleBackend>();
  }
  std::shared_ptr<FailureBoard> failure_board() override { return nullptr; }
  void close() noexcept override {}

 private:
  // The shapes may differ; the numbers of elements are equal.
  static void copy(const at::Tensor& output, const at::Tensor& input) { output.view({-1}).copy_(input.view({-1})); }
};

}  // namespace

std::shared_ptr<Backend> make_single_backend() {
  return std::make_shared<SingleBackend>();
}

}  // namespace tutti::comm
