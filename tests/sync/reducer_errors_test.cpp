// Errors that a Reducer reports by parameter name: 1 to 3 ranks as threads and as processes.
#include <gtest/gtest.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/optim/sgd.h>

#include <algorithm>

#include "support/process_case.h"
#include "support/rank_case.h"
#include "support/training.h"
#include "sync/sampled_hash.h"
#include "tutti/core/error.h"
#include "tutti/detail/sync/reducer.h"
#include "tutti/optim/optimizer.h"
#include "tutti/sync/distributed_data_parallel.h"

namespace tutti::test::reducer_errors_test {
namespace {

/// A model, its reducer and a prepared optimizer.
struct Prepared {
  explicit Prepared(const Communicator& communicator, SyncPolicy policy = SyncPolicy::automatic)
      : reducer(std::make_shared<Reducer>(named_parameters_of(*model), communicator.duplicate("test"),
                                          ReducerOptions{.policy = policy})),
        raw(std::make_shared<torch::optim::SGD>(model->parameters(), 0.1)),
        optimizer(raw, reducer) {}

  void pass(std::int64_t index) {
    const Batch batch = batch_of(index);
    loss_of(model->forward(batch.input), batch.target).backward();
  }

  Mlp model;
  std::shared_ptr<Reducer> reducer;
  std::shared_ptr<torch::optim::SGD> raw;
  Optimizer optimizer;
};

template <typename Exception, typename Action>
std::string message_of(const Action& action) {
  try {
    action();
  } catch (const Exception& error) {
    return error.what();
  } catch (const std::exception& error) {
    ADD_FAILURE() << "another exception: " << error.what();
    return "";
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

void expect_mentions(const std::string& message, const std::string& word) {
  EXPECT_NE(message.find(word), std::string::npos) << message;
}

const ProcessCase to_dtype_after_prepare_is_an_error_that_names_the_parameter(
    "reducer: to dtype after prepare is an error that names the parameter", [](const Communicator& communicator) {
      Prepared prepared(communicator);
      prepared.pass(communicator.rank());
      prepared.optimizer.step();
      prepared.optimizer.zero_grad();
      prepared.model->to(at::kDouble);
      const Batch batch = batch_of(0, at::kDouble);
      const std::string message =
          message_of<UsageError>([&] { loss_of(prepared.model->forward(batch.input), batch.target).backward(); });
      expect_mentions(message, "'second.bias' was changed after prepare()");
      expect_mentions(message, "Double");
    });
TEST(ReducerErrors, ToDtypeAfterPrepareIsAnErrorThatNamesTheParameter) {
  to_dtype_after_prepare_is_an_error_that_names_the_parameter.on_threads({2});
}

const ProcessCase unfreezing_after_prepare_is_an_error_that_names_the_parameter(
    "reducer: unfreezing after prepare is an error that names the parameter", [](const Communicator& communicator) {
      Mlp model;
      model->second->bias.requires_grad_(false);
      const auto reducer = std::make_shared<Reducer>(named_parameters_of(*model), communicator.duplicate("test"));
      Optimizer optimizer(std::make_shared<torch::optim::SGD>(model->parameters(), 0.1), reducer);
      model->second->bias.requires_grad_(true);
      const Batch batch = batch_of(0);
      const std::string message = message_of<UsageError>([&] {
        loss_of(model->forward(batch.input), batch.target).backward();
        optimizer.step();
      });
      expect_mentions(message, "second.bias");
      expect_mentions(message, "unfrozen");
    });
TEST(ReducerErrors, UnfreezingAfterPrepareIsAnErrorThatNamesTheParameter) {
  unfreezing_after_prepare_is_an_error_that_names_the_parameter.on_threads({2});
}

const ProcessCase raw_optimizer_step_on_local_gradients_is_found(
    "reducer: raw optimizer step on local gradients is found", [](const Communicator& communicator) {
      Prepared prepared(communicator, SyncPolicy::manual);
      const auto quiet = NoSyncScope({prepared.reducer});
      prepared.pass(communicator.rank());
      prepared.raw->step();  // not the prepared one
      const std::string message = message_of<UsageError>([&] { prepared.pass(2 + communicator.rank()); });
      expect_mentions(message, "first.weight");
      expect_mentions(message, "prepare()");
      EXPECT_EQ(prepared.reducer->state_dict().get<std::int64_t>("window.passes"), 1);
    });
TEST(ReducerErrors, RawOptimizerStepOnLocalGradientsIsFound) {
  raw_optimizer_step_on_local_gradients_is_found.on_threads({2});
}

const ProcessCase replicas_that_drifted_are_found_on_all_ranks_by_name(
    "reducer: replicas that drifted are found on all ranks by name", [](const Communicator& communicator) {
      Prepared prepared(communicator, SyncPolicy::every_pass);
      prepared.pass(communicator.rank());
      prepared.optimizer.step();
      prepared.optimizer.zero_grad();
      if (communicator.rank() == 1) prepared.model->second->weight.data().add_(0.01);
      const std::string message = message_of<MismatchError>([&] { prepared.pass(communicator.rank()); });
      expect_mentions(message, "second.weight");
      expect_mentions(message, "rank 1");
      expect_mentions(message_of<UsageError>([&] { prepared.optimizer.step(); }), "invalid");
    });
TEST(ReducerErrors, ReplicasThatDriftedAreFoundOnAllRanksByName) {
  replicas_that_drifted_are_found_on_all_ranks_by_name.on_threads({3});
}

// The check reads every element of a small parameter.
const ProcessCase one_element_drifts("reducer: one element drifts", [](const Communicator& communicator) {
  Prepared prepared(communicator, SyncPolicy::every_pass);
  for (std::int64_t element = 0; element < prepared.model->first->bias.numel(); ++element) {
    prepared.pass(communicator.rank());
    prepared.optimizer.step();
    prepared.optimizer.zero_grad();
    const at::Tensor drifting = prepared.model->first->bias.data().narrow(0, element, 1);
    if (communicator.rank() == 1) drifting.add_(1e-4);
    const std::string message = message_of<MismatchError>([&] { prepared.pass(communicator.rank()); });
    expect_mentions(message, "first.bias");
    prepared.optimizer.zero_grad();
    communicator.broadcast(prepared.model->first->bias.data(), 0).wait();
  }
});
TEST(ReducerErrors, OneElementThatDriftedIsFound) {
  one_element_drifts.on_threads({2});
}

// Forward or the program changes a few elements of a large parameter on one rank.
const ProcessCase few_elements_drift("reducer: few elements drift", [](const Communicator& communicator) {
  struct Table : torch::nn::Module {
    at::Tensor weight = register_parameter("weight", random_tensor({300, 8}, 5));
  };
  const auto table = std::make_shared<Table>();
  const DistributedDataParallel ddp(*table, communicator);
  table->weight.square().sum().backward();
  if (communicator.rank() == 1) table->weight.data()[123][4].add_(1e-4);
  const std::string message = message_of<MismatchError>([&] {
    for (int sync = 0; sync < 150; ++sync) table->weight.square().sum().backward();  // ceil(2400 / 16)
  });
  expect_mentions(message, "'weight'");
  expect_mentions(message, "of rank 1 differs");
  expect_mentions(message, "max_norm");
});
TEST(ReducerErrors, FewElementsThatDriftedAreFoundInTheStatedNumberOfSyncs) {
  few_elements_drift.on_threads({2, 3});
}

// On one rank nothing can differ, so a parameter that changes between passes is the program's own choice.
TEST(ReducerErrors, OneRankMayChangeParametersBetweenPasses) {
  Prepared prepared((Communicator()), SyncPolicy::manual);
  {
    const auto quiet = NoSyncScope({prepared.reducer});
    prepared.pass(0);
    prepared.raw->step();
    EXPECT_NO_THROW(prepared.pass(1));
  }
  EXPECT_NO_THROW(prepared.optimizer.step());
}

// The check samples a large parameter's elements and finds a change of a short part.
TEST(ReducerErrors, AStepOfAPartOfALargeParameterIsFound) {
  at::Tensor large = at::zeros({10'007});
  const auto before = sync::sampled_hash(large);
  for (std::int64_t first = 0; first < large.numel(); first += 100) {
    const auto part = large.narrow(0, first, std::min<std::int64_t>(1'300, large.numel() - first));
    if (part.numel() < 1'300) break;
    part.add_(1e-6);
    EXPECT_NE(sync::sampled_hash(large), before) << first;
    part.zero_();
  }
  EXPECT_EQ(sync::sampled_hash(large), before);
}

const ProcessCase create_graph_is_refused("reducer: create graph is refused", [](const Communicator& communicator) {
  Prepared prepared(communicator);
  const Batch batch = batch_of(0);
  const at::Tensor loss = loss_of(prepared.model->forward(batch.input), batch.target);
  expect_mentions(message_of<UsageError>([&] { loss.backward({}, true, /*create_graph=*/true); }), "create_graph");
});
TEST(ReducerErrors, CreateGraphIsRefused) {
  create_graph_is_refused.on_threads({2});
}

const ProcessCase errors_can_be_replaced(
    "reducer: errors of passes can be replaced", [](const Communicator& communicator) {
      torch::nn::Linear model(4, 1);
      int told = 0;
      const auto replace = [&](const std::exception_ptr& error) {
        ++told;
        EXPECT_THROW(std::rethrow_exception(error), UsageError);
        throw std::domain_error("in another language");
      };
      const DistributedDataParallel ddp(model, communicator, {.pass_error = replace});
      EXPECT_THROW(model(random_tensor({3, 4}, 50)).sum().backward({}, true, /*create_graph=*/true), std::domain_error);
      EXPECT_EQ(told, 1);
    });
TEST(ReducerErrors, ErrorsOfPassesCanBeReplaced) {
  errors_can_be_replaced.on_threads({1, 2});
}

const ProcessCase replicas_are_not_compared("reducer: replicas are not compared", [](const Communicator& communicator) {
  Prepared prepared(communicator, SyncPolicy::every_pass);
  prepared.reducer->set_check_replicas(false);
  if (communicator.rank() == 1) prepared.model->second->weight.data().add_(0.01);
  prepared.pass(communicator.rank());
  prepared.optimizer.step();
  prepared.optimizer.zero_grad();
  prepared.reducer->set_check_replicas(true);
  expect_mentions(message_of<MismatchError>([&] { prepared.pass(communicator.rank()); }), "second.weight");
});
TEST(ReducerErrors, ReplicasAreNotComparedWhileTheCheckIsOff) {
  replicas_are_not_compared.on_threads({2});
}

const ProcessCase gradients_touched_before_an_early_step_are_refused(
    "reducer: gradients touched before an early step are refused", [](const Communicator& communicator) {
      Prepared prepared(communicator, SyncPolicy::manual);
      {
        const auto quiet = NoSyncScope({prepared.reducer});
        prepared.pass(communicator.rank());
      }
      prepared.model->first->weight.mutable_grad().mul_(0.5);
      expect_mentions(message_of<UsageError>([&] { prepared.optimizer.step(); }), "first.weight");
      prepared.reducer->synchronize();  // as the message says, before the program modifies gradients
      prepared.model->first->weight.mutable_grad().mul_(0.5);
      prepared.optimizer.step();
    });
TEST(ReducerErrors, GradientsTouchedBeforeAnEarlyStepAreRefused) {
  gradients_touched_before_an_early_step_are_refused.on_threads({2});
}

const ProcessCase gradients_that_no_pass_brought_are_refused(
    "reducer: gradients that no pass brought are refused", [](const Communicator& communicator) {
      Prepared prepared(communicator);
      prepared.model->first->bias.mutable_grad() = at::ones({8}) * communicator.rank();
      expect_mentions(message_of<UsageError>([&] { prepared.optimizer.step(); }), "first.bias");
      prepared.reducer->synchronize();
      const auto mean = static_cast<float>(communicator.size() - 1) / 2;
      EXPECT_TRUE(at::equal(prepared.model->first->bias.grad(), at::full({8}, mean)));
      prepared.optimizer.step();
    });
TEST(ReducerErrors, GradientsThatNoPassBroughtAreRefused) {
  gradients_that_no_pass_brought_are_refused.on_threads({2});
}

const ProcessCase a_different_number_of_synchronizing_passes_is_a_divergence(
    "reducer: a different number of synchronizing passes is a divergence", [](const Communicator& communicator) {
      Prepared prepared(communicator, SyncPolicy::every_pass);
      prepared.pass(0);
      if (communicator.rank() == 1) {
        prepared.optimizer.step();
        prepared.optimizer.zero_grad();
      }
      expect_mentions(message_of<MismatchError>([&] { prepared.pass(1); }), "step");
    });
TEST(ReducerErrors, ADifferentNumberOfSynchronizingPassesIsAMismatchError) {
  a_different_number_of_synchronizing_passes_is_a_divergence.on_threads({2});
}

const ProcessCase different_models_are_a_divergence_that_names_the_difference(
    "reducer: different models are a divergence that names the difference", [](const Communicator& communicator) {
      torch::nn::Linear model(4, communicator.rank() == 2 ? 3 : 2);
      const std::string message = message_of<MismatchError>([&] { DistributedDataParallel ddp(model, communicator); });
      expect_mentions(message, "'weight'");
      expect_mentions(message, "[3, 4]");
      expect_mentions(message, "rank 2");
    });
TEST(ReducerErrors, DifferentModelsAreAMismatchErrorThatNamesTheDifference) {
  different_models_are_a_divergence_that_names_the_difference.on_threads({3});
}

TEST(ReducerErrors, DifferentOptionsAreAMismatchErrorThatNamesTheOption) {
  run_thread_ranks(3, [](const Communicator& communicator) {
    const SyncPolicy policy = communicator.rank() == 1 ? SyncPolicy::every_pass : SyncPolicy::automatic;
    const std::string message = message_of<MismatchError>([&] { Prepared(communicator, policy); });
    expect_mentions(message, "different options of the synchronization");
    expect_mentions(message, "rank 0 has policy automatic where rank 1 has policy every_pass");
  });
}

/// Throws in backward if `explode`.
struct Explosive : torch::autograd::Function<Explosive> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, bool explode) {
    context->saved_data["explode"] = explode;
    return x * 1.0;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& grads) {
    if (context->saved_data["explode"].toBool()) throw std::runtime_error("boom");
    return {grads[0], at::Tensor()};
  }
};

// Rank 1's backward throws half-way through a pass in which its peers synchronize.
const ProcessCase an_exception_in_backward_is_told_to_the_others_and_the_next_step_works(
    "reducer: an exception in backward is told to the others and the next step works",
    [](const Communicator& communicator) {
      Prepared prepared(communicator, SyncPolicy::every_pass);
      const auto pass = [&](bool explode) {
        const Batch batch = batch_of(communicator.rank());
        at::Tensor hidden = at::tanh(prepared.model->first(batch.input));
        hidden = Explosive::apply(hidden, explode);
        loss_of(prepared.model->second(hidden), batch.target).backward();
      };
      if (communicator.rank() == 1) {
        EXPECT_THROW(pass(true), std::runtime_error);
        prepared.optimizer.zero_grad();
      } else {
        const std::string message = message_of<PeerError>([&] { pass(false); });
        expect_mentions(message, "rank 1 aborted this step");
        expect_mentions(message_of<UsageError>([&] { prepared.optimizer.step(); }), "invalid");
        prepared.optimizer.zero_grad();
      }
      pass(false);
      prepared.optimizer.step();
      EXPECT_EQ(prepared.reducer->stats().syncs, communicator.rank() == 1 ? 1 : 2);
    });
TEST(ReducerErrors, AnExceptionInBackwardIsReportedToPeersAndTheNextStepWorks) {
  an_exception_in_backward_is_told_to_the_others_and_the_next_step_works.on_threads({3});
}

}  // namespace
}  // namespace tutti::test::reducer_errors_test
