// A rank that exits or stops during training causes an exception with the rank's number on its peers. Real processes.
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

#include <csignal>
#include <iostream>

#include "support/rank_case.h"
#include "support/temporary_folder.h"
#include "support/training.h"
#include "tutti/core/error.h"
#include "tutti/train/accelerator.h"

namespace tutti::test::failure_test {
namespace {

/// Trains until `at_batch` throws or ends the process.
void train(const AcceleratorOptions& options, const std::function<void(const Accelerator&, int batch)>& at_batch) {
  Accelerator accelerator(options);
  Mlp net;
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
  for (int batch_number = 0;; ++batch_number) {
    at_batch(accelerator, batch_number);
    const auto window = accelerator.accumulate(model);
    const Batch batch = batch_of(accelerator.rank());
    accelerator.backward(loss_of(model->forward(batch.input), batch.target));
    optimizer.step();
    optimizer.zero_grad();
  }
}

/// Prints the failure that ends training, for the tests below.
void report_failure(const AcceleratorOptions& options,
                    const std::function<void(const Accelerator&, int batch)>& at_batch) {
  try {
    train(options, at_batch);
  } catch (const TimeoutError& timeout) {
    std::cout << "timeout: " << timeout.what() << std::endl;
  } catch (const PeerError& failure) {
    std::cout << "peer failure: " << failure.what() << std::endl;
  }
}

const RankProgram one_is_killed("one_is_killed", [] {
  report_failure({.gradient_accumulation_steps = 2}, [](const Accelerator& accelerator, int batch) {
    if (batch == 3 && accelerator.rank() == 1) raise(SIGKILL);
  });
});

TEST(Failure, AKilledRankIsNamedByTheOthers) {
  const auto results = run_processes(one_is_killed, 3);
  EXPECT_EQ(results[1].signal, SIGKILL);
  for (const int rank : {0, 2}) {
    EXPECT_EQ(results[rank].exit_code, 0) << results[rank].output;
    EXPECT_NE(results[rank].output.find("peer failure: "), std::string::npos) << results[rank].output;
    EXPECT_NE(results[rank].output.find("rank 1"), std::string::npos) << results[rank].output;
  }
}

const RankProgram later_calls("later_calls", [] {
  Accelerator accelerator;
  Mlp net;
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
  const auto backward = [&] {
    const Batch batch = batch_of(accelerator.rank());
    accelerator.backward(loss_of(model->forward(batch.input), batch.target));
  };
  if (accelerator.rank() == 1) raise(SIGKILL);
  const std::vector<std::function<void()>> calls{backward, backward, [&] { optimizer.step(); },
                                                 [&] { accelerator.clip_grad_norm_(model, 1); }};
  std::string named;
  for (const auto& call : calls) {
    try {
      call();
    } catch (const PeerError& failure) {
      named += failure.ranks() == std::vector<int>{1} ? "rank 1, " : "others, ";
    }
  }
  std::cout << named << std::endl;
});

TEST(Failure, LaterCallsNameTheKilledRankToo) {
  const auto results = run_processes(later_calls, 2);
  EXPECT_EQ(results[0].exit_code, 0) << results[0].output;
  EXPECT_NE(results[0].output.find("rank 1, rank 1, rank 1, rank 1, \n"), std::string::npos) << results[0].output;
}

const RankProgram one_stops("one_stops", [] {
  report_failure({.communication = {.timeout = std::chrono::seconds(10)}},
                 [](const Accelerator& accelerator, int batch) {
                   if (batch == 3 && accelerator.rank() == 1) raise(SIGSTOP);
                 });
});

TEST(Failure, AStoppedRankIsNamedAtTheDeadline) {
  RankProcesses ranks(one_stops, 3);
  EXPECT_TRUE(ranks.wait_for_output(0, "timeout: "));
  EXPECT_TRUE(ranks.wait_for_output(2, "timeout: "));
  ranks.send_signal(1, SIGKILL);
  const auto results = ranks.wait();
  for (const int rank : {0, 2}) {
    EXPECT_EQ(results[rank].exit_code, 0) << results[rank].output;
    EXPECT_NE(results[rank].output.find("rank 1"), std::string::npos) << results[rank].output;
  }
}

const RankProgram one_saves("one_saves", [] {
  const TemporaryFolder folder;
  Accelerator accelerator;
  Mlp net;
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
  try {
    for (int step = 0;; ++step) {
      if (step == 3 && accelerator.is_main_process()) accelerator.save_state({.folder = folder.path() / "saved"});
      const Batch batch = batch_of(accelerator.rank());
      accelerator.backward(loss_of(model->forward(batch.input), batch.target));
      optimizer.step();
      optimizer.zero_grad();
    }
  } catch (const MismatchError& error) {
    std::cout << "told: " << error.what() << std::endl;
  }
});

// Number of times that the output names this file as the place of a call.
int lines_named(const std::string& output) {
  int count = 0;
  for (auto at = output.find(", failure_test.cpp:"); at != std::string::npos;
       at = output.find(", failure_test.cpp:", at + 1)) {
    ++count;
  }
  return count;
}

// A common mistake of Accelerate's users. In Accelerate the mistake ends only with the deadline.
TEST(Failure, SavingOnTheMainProcessAloneIsReportedToAllRanks) {
  for (const RankResult& result : run_processes(one_saves, 3)) {
    EXPECT_EQ(result.exit_code, 0) << result.output;
    EXPECT_NE(result.output.find("told: called on some ranks only: rank 0 waits in "), std::string::npos)
        << result.output;
    EXPECT_NE(result.output.find("ranks 1, 2 wait in gradient "), std::string::npos) << result.output;
    EXPECT_EQ(lines_named(result.output), 2) << result.output;
  }
}

const RankProgram models_differ("models_differ", [] {
  Accelerator accelerator;
  torch::nn::Linear net(4, accelerator.rank() == 1 ? 3 : 2);
  accelerator.prepare(net);
});

TEST(Failure, DifferentModelsEndAllRanksWithAMessage) {
  for (const RankResult& result : run_processes(models_differ, 2)) {
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_NE(result.output.find("different models"), std::string::npos) << result.output;
    EXPECT_NE(result.output.find("'weight'"), std::string::npos) << result.output;
  }
}

}  // namespace
}  // namespace tutti::test::failure_test
