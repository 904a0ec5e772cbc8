// Ranks: 1, 2 and 3 as threads, each with a simulated device. SyncBatchNorm on devices, compared with the CPU.
#include "tutti/sync/sync_batch_norm.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <string>

#include "device/both.h"
#include "device/slow_device.h"
#include "support/training.h"
#include "tutti/core/error.h"

namespace tutti::device_sync_batch_norm_test {
namespace {

using test::run_simulated_ranks;
using test::SlowKernels;
using test::waits_during;
using torch::nn::BatchNormOptions;

constexpr std::int64_t channels = 4;

/// Batches of different sizes on the ranks: outputs, gradients and buffers.
test::RankBody normalizes_with(const BatchNormOptions& options) {
  return [options](const Communicator& communicator, at::Device device) {
    SyncBatchNorm norm(options, communicator);
    test::fill(*norm, 5);
    norm->to(device);
    std::vector<at::Tensor> results;
    for (std::uint64_t pass = 0; pass < 3; ++pass) {
      const std::int64_t samples = pass == 1 && communicator.rank() == 1 ? 0 : communicator.rank() + 2;
      const auto seed = 10 * pass + static_cast<std::uint64_t>(communicator.rank());
      at::Tensor input = test::random_tensor({samples, channels, 3}, seed).to(device).requires_grad_();
      const at::Tensor output = norm->forward(input * 2 + 1);
      output.pow(3).sum().backward();
      results.push_back(output.detach());
      results.push_back(input.grad());
    }
    for (const at::Tensor& gradient : test::gradients_of(*norm)) results.push_back(gradient);
    for (const at::Tensor& tensor : test::tensors_of(*norm)) results.push_back(tensor);
    norm->eval();
    results.push_back(norm->forward(test::random_tensor({2, channels, 3}, 77).to(device)).detach());
    return results;
  };
}

TEST(DeviceSyncBatchNorm, IsThatOfTheCpu) {
  for (const auto& options :
       {BatchNormOptions(channels), BatchNormOptions(channels).momentum(std::nullopt),
        BatchNormOptions(channels).affine(false), BatchNormOptions(channels).track_running_stats(false)}) {
    for (const int size : {1, 2, 3}) {
      SCOPED_TRACE(std::to_string(size) + " ranks");
      const auto expected = test::results_on_cpu(size, normalizes_with(options));
      const SlowKernels slow(50);
      for (const char* const backend : {"auto", "staged"}) {
        test::expect_equal(test::results_on_devices({.size = size, .backend = backend}, normalizes_with(options)),
                           expected, 1e-5);
      }
    }
  }
}

TEST(DeviceSyncBatchNorm, DoesNotWaitForTheDevice) {
  for (const bool has_momentum : {true, false}) {
    run_simulated_ranks({}, [&](const Communicator& communicator, at::Device device) {
      const auto options = BatchNormOptions(channels).momentum(has_momentum ? std::optional(0.1) : std::nullopt);
      SyncBatchNorm norm(options, communicator);
      norm->to(device);
      const at::Tensor input = test::random_tensor({3, channels}, 1).to(device).requires_grad_();
      const auto pass = [&] { norm->forward(input).pow(2).sum().backward(); };
      pass();
      EXPECT_EQ(waits_during(communicator, pass), 0);
    });
  }
}

TEST(DeviceSyncBatchNorm, ARejectedInputIsAnErrorOnAllRanks) {
  run_simulated_ranks({}, [&](const Communicator& communicator, at::Device device) {
    SyncBatchNorm norm(BatchNormOptions(channels), communicator);
    norm->to(device);
    const at::Tensor input = test::random_tensor({3, channels}, 1);
    if (communicator.rank() == 1) {
      try {
        norm->forward(input);
        ADD_FAILURE() << "no error";
      } catch (const UsageError& error) {
        EXPECT_NE(std::string(error.what()).find("the input is on cpu and the module on "), std::string::npos)
            << error.what();
      }
      EXPECT_THROW(norm->forward(at::Tensor()), UsageError);
    } else {
      EXPECT_THROW(norm->forward(input.to(device)), PeerError);
      EXPECT_THROW(norm->forward(input.to(device)), PeerError);
    }
    // The communicator stays usable.
    EXPECT_TRUE(norm->forward(input.to(device)).isfinite().all().item<bool>());
  });
}

}  // namespace
}  // namespace tutti::device_sync_batch_norm_test
