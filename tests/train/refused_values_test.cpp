// Numbers that setters and calls refuse, as constructors do. 1 process, and 2 ranks as threads for collectives.
#include <gtest/gtest.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <limits>
#include <string>
#include <vector>

#include "support/ranks.h"
#include "support/training.h"
#include "train/trainer_run.h"
#include "tutti/core/error.h"
#include "tutti/train/accelerator.h"
#include "tutti/train/callbacks/early_stopping.h"
#include "tutti/train/callbacks/ema.h"

namespace tutti::test::refused_values_test {
namespace {

constexpr double nan = std::numeric_limits<double>::quiet_NaN();
constexpr double infinity = std::numeric_limits<double>::infinity();

/// The message of the error that `call` throws.
template <typename Error, typename Call>
std::string message_of(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  ADD_FAILURE() << "no error of this type was thrown";
  return "";
}

void expect_parts(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) EXPECT_NE(text.find(part), std::string::npos) << part << " is not in: " << text;
}

TEST(RefusedValues, LearningRates) {
  Accelerator accelerator({.communicator = Communicator()});
  Mlp net;
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
  for (const double rate : {nan, infinity, -infinity, -0.5}) {
    expect_parts(message_of<UsageError>([&, &of = optimizer] { of.set_learning_rate(rate); }),
                 {"set_learning_rate: the rate is " + std::to_string(rate)});
    EXPECT_EQ(optimizer.learning_rate(), 0.1);
  }
  optimizer.set_learning_rate(0);
  EXPECT_EQ(optimizer.learning_rate(), 0);
}

TEST(RefusedValues, MomentaOfSchedules) {
  const auto schedule_with = [](double momentum) {
    return LrSchedule([](std::int64_t) { return 1.0; }, [momentum](std::int64_t) { return momentum; });
  };
  for (const double momentum : {nan, infinity, -0.1, 1.0}) {
    Accelerator accelerator({.communicator = Communicator()});
    Mlp net;
    EXPECT_THROW(accelerator.prepare(net, torch::optim::AdamW(net->parameters(), 0.1), schedule_with(momentum)),
                 UsageError)
        << momentum;
  }
  for (const double momentum : {nan, infinity, -0.1}) {
    Accelerator accelerator({.communicator = Communicator()});
    Mlp net;
    EXPECT_THROW(accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1), schedule_with(momentum)),
                 UsageError)
        << momentum;
  }
}

TEST(RefusedValues, RatesOfDamagedCheckpoints) {
  Accelerator accelerator({.communicator = Communicator()});
  Mlp net;
  auto [model, optimizer, scheduler] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1), constant());
  StateDict state = scheduler.state_dict();
  state.set("base_rates", std::vector<double>{nan});
  EXPECT_THROW(scheduler.load_state_dict(state), CheckpointError);
  ReduceLROnPlateau plateau(optimizer);
  StateDict of_plateau = plateau.state_dict();
  of_plateau.set("_last_lr", std::vector<double>{infinity});
  EXPECT_THROW(plateau.load_state_dict(of_plateau), CheckpointError);
  EXPECT_EQ(optimizer.learning_rate(), 0.1);
}

TEST(RefusedValues, OptionsOfCallbacksAndTrainer) {
  EXPECT_THROW(EarlyStopping(EarlyStoppingOptions{.min_delta = nan}), UsageError);
  EXPECT_THROW(EarlyStopping(EarlyStoppingOptions{.min_delta = infinity}), UsageError);
  EXPECT_THROW(Ema(EmaOptions{.decay = nan}), UsageError);
  EXPECT_THROW(TrainerRun({.communicator = Communicator()}, {.max_steps = 1, .max_grad_norm = nan}), UsageError);
  EXPECT_THROW(Accelerator({.reproducible = ReproducibleOptions{.threads = std::numeric_limits<int>::max()},
                            .communicator = Communicator()}),
               UsageError);
}

// All ranks throw, also ranks whose own tensor would hold the value.
TEST(RefusedValues, PaddingThatADtypeDoesNotHold) {
  run_thread_ranks(2, [](const Communicator& communicator) {
    const auto pad = [&](at::ScalarType dtype, double pad_index) {
      const at::Tensor rows = at::ones({1 + communicator.rank()}, at::TensorOptions(dtype));
      return pad_across_processes(communicator, rows, {.pad_index = pad_index});
    };
    const auto refused = [&](at::ScalarType dtype, double pad_index, const std::vector<std::string>& parts) {
      const std::string text = message_of<UsageError>([&] { (void)pad(dtype, pad_index); });
      expect_parts(text, {"pad_index is "});
      expect_parts(text, parts);
    };
    refused(at::kByte, 256, {"256", "Byte", "from 0 to 255"});
    refused(at::kByte, -1, {"-1"});
    refused(at::kChar, 128, {"from -128 to 127"});
    refused(at::kLong, 0.5, {"0.5", "Long"});
    refused(at::kLong, nan, {"nan"});
    refused(at::kLong, 9223372036854775808.0, {"from -2^63 to 2^63 - 1"});
    refused(at::kBool, 2, {"from 0 to 1"});
    refused(at::kHalf, 70000, {"70000", "Half"});
    refused(at::kFloat, 1e300, {"Float"});
    EXPECT_EQ(pad(at::kByte, 255)[-1].item<int>(), communicator.rank() == 0 ? 255 : 1);
    EXPECT_EQ(pad(at::kLong, -100).size(0), 2);
    EXPECT_EQ(pad(at::kBool, 1).size(0), 2);
    EXPECT_EQ(pad(at::kHalf, infinity).size(0), 2);
    EXPECT_EQ(pad(at::kFloat, nan).size(0), 2);
    expect_parts(message_of<UsageError>([&] { (void)reduce(communicator, at::ones({1}), ReduceOp::sum, nan); }),
                 {"scale is nan"});
  });
}

}  // namespace
}  // namespace tutti::test::refused_values_test
