// Ranks: 2 as processes, on one device. How training ends while the device computes, in order and after a failure.
#include <ATen/ops/cat.h>
#include <gtest/gtest.h>

#include <csignal>
#include <cstddef>
#include <iostream>
#include <regex>

#include "gpu/training.h"
#include "tutti/core/error.h"
#include "tutti/detail/core/crc32c.h"

namespace tutti::test::ends_test {
namespace {

using gpu::device;

std::uint32_t checksum(const torch::nn::Module& module) {
  std::uint32_t sum = 0;
  for (const at::Tensor& value : gpu::values_of(module)) {
    sum = crc32c({static_cast<const std::byte*>(value.const_data_ptr()), value.nbytes()}, sum);
  }
  return sum;
}

const RankProgram ends_with_sums_in_flight("ends_with_sums_in_flight", [] {
  Mlp net(3);
  net->to(device());
  {
    Accelerator accelerator({.device = device(), .communication = gpu::communication_on_one_device()});
    auto [model, optimizer] = accelerator.prepare(net, torch::optim::AdamW(net->parameters(), 0.01));
    gpu::run_steps(accelerator, model, optimizer, {.last = 2, .batch_at = gpu::batches_on(device())});
    const Batch last = gpu::batches_on(device())(accelerator.rank());
    gpu::keep_device_busy();
    accelerator.backward(loss_of(model->forward(last.input), last.target));
    optimizer.step();
  }
  std::cout << "parameters " << checksum(*net) << std::endl;
});

TEST(Ends, SumsInFlightCompleteBeforeTheAcceleratorEnds) {
  const auto results = gpu::run_on_one_device(ends_with_sums_in_flight);
  expect_success(results);
  std::vector<std::string> checksums;
  for (const RankResult& result : results) {
    std::smatch found;
    ASSERT_TRUE(std::regex_search(result.output, found, std::regex("parameters ([0-9]+)"))) << result.output;
    checksums.push_back(found[1]);
  }
  EXPECT_EQ(checksums.at(0), checksums.at(1)) << "the last sum was lost on a rank";
}

const RankProgram is_killed_in_a_step("is_killed_in_a_step", [] {
  Accelerator accelerator({.device = device(), .communication = gpu::communication_on_one_device()});
  Mlp net(3);
  net->to(device());
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::AdamW(net->parameters(), 0.01));
  const Batch batch = gpu::batches_on(device())(accelerator.rank());
  const auto pass = [&, &model = model, &optimizer = optimizer] {
    accelerator.backward(loss_of(model->forward(batch.input), batch.target));
    optimizer.step();
    optimizer.zero_grad();
  };
  pass();
  if (accelerator.rank() == 1) {
    gpu::keep_device_busy();  // the sum of the next pass has not begun when the process is killed
    pass();
    std::raise(SIGKILL);
  }
  try {
    pass();
    gpu::wait_for_device();
    pass();
    ADD_FAILURE() << "no error";
  } catch (const PeerError& error) {
    EXPECT_EQ(error.ranks(), std::vector<int>{1});
  }
});

TEST(Ends, AKilledRankIsNamed) {
  const auto results = gpu::run_on_one_device(is_killed_in_a_step);
  EXPECT_EQ(results.at(0).exit_code, 0) << results.at(0).output;
  EXPECT_EQ(results.at(1).signal, SIGKILL) << results.at(1).output;
}

}  // namespace
}  // namespace tutti::test::ends_test
