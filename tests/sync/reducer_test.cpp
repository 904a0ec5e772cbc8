// What autograd and users do to gradients between hooks: 1 to 3 ranks as threads and as processes.
#include "tutti/sync/reducer.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/optim/sgd.h>

#include <algorithm>

#include "support/process_case.h"
#include "support/rank_case.h"
#include "support/training.h"
#include "sync/parameter_watch.h"
#include "tutti/core/error.h"
#include "tutti/optim/optimizer.h"
#include "tutti/sync/distributed_data_parallel.h"

namespace tutti::test::reducer_test {
namespace {

using torch::nn::Linear;

/// A model with what a Reducer must cope with: one layer shared, one not always used, one frozen.
struct AwkwardImpl : torch::nn::Module {
  AwkwardImpl()
      : shared(register_module("shared", Linear(4, 4))),
        alias(register_module("alias", shared)),
        sometimes(register_module("sometimes", Linear(4, 4))),
        never(register_module("never", Linear(4, 4))),
        frozen(register_module("frozen", Linear(4, 4))) {
    fill(*this, 3);
    for (at::Tensor& parameter : frozen->parameters()) parameter.requires_grad_(false);
  }
  at::Tensor forward(const at::Tensor& x, bool use_sometimes) {
    at::Tensor h = alias(at::tanh(frozen(shared(x))));
    return use_sometimes ? sometimes(h) : h;
  }
  Linear shared, alias, sometimes, never, frozen;
};
TORCH_MODULE(Awkward);

at::Tensor input_of(std::int64_t index) {
  return random_tensor({3, 4}, 50 + static_cast<std::uint64_t>(index));
}

const RankCase unused_tied_frozen("unused_tied_frozen", [](const Communicator& communicator) {
  Awkward reference;
  Awkward model;
  DistributedDataParallel ddp(model, communicator);
  for (int round = 0; round < 3; ++round) {
    // Only the last rank uses the layer, and nobody in the last round.
    const auto uses = [&](int rank) { return rank + 1 == communicator.size() && round < 2; };
    reference->zero_grad();
    for (int rank = 0; rank < communicator.size(); ++rank) {
      const auto index = round * communicator.size() + rank;
      (reference->forward(input_of(index), uses(rank)).pow(2).mean() / communicator.size()).backward();
    }
    model->zero_grad();
    const auto index = round * communicator.size() + communicator.rank();
    model->forward(input_of(index), uses(communicator.rank())).pow(2).mean().backward();
    EXPECT_TRUE(close(gradients_of(*model), gradients_of(*reference), 1e-6)) << "round " << round;
    EXPECT_FALSE(model->never->weight.grad().defined());
    EXPECT_FALSE(model->frozen->weight.grad().defined());
    EXPECT_EQ(model->sometimes->weight.grad().defined(), round < 2);
  }
});
TEST(Reducer, UnusedTiedAndFrozenParameters) {
  unused_tied_frozen.everywhere();
}

/// Activation checkpointing: forward again inside backward, and a backward pass inside it.
struct Checkpoint : torch::autograd::Function<Checkpoint> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, Linear layer) {
    context->save_for_backward({x});
    context->saved_data["layer"] = reinterpret_cast<std::int64_t>(layer.get());
    return layer->forward(x);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& grads) {
    auto* layer = reinterpret_cast<torch::nn::LinearImpl*>(context->saved_data["layer"].toInt());
    const at::Tensor x = context->get_saved_variables()[0].detach().requires_grad_();
    const at::AutoGradMode enable(true);
    layer->forward(x).backward(grads[0]);
    return {x.grad(), at::Tensor()};
  }
};

// The checkpointed layer is used twice, so its hooks fire twice in one pass, inside nested backward passes.
const RankCase reentrant("reentrant", [](const Communicator& communicator) {
  Awkward reference;
  Awkward model;
  const ReducerOptions one_bucket_each{.buckets = {.first_bucket_bytes = 1, .bucket_bytes = 1}};
  DistributedDataParallel ddp(model, communicator, one_bucket_each);
  for (int round = 0; round < 4; ++round) {
    const auto loss = [](Awkward& net, const at::Tensor& x) {
      at::Tensor h = net->shared(x.detach().requires_grad_());
      h = Checkpoint::apply(h, net->sometimes);
      h = Checkpoint::apply(at::tanh(h), net->sometimes);
      return net->never(h).pow(2).mean();
    };
    reference->zero_grad();
    for (int rank = 0; rank < communicator.size(); ++rank) {
      (loss(reference, input_of(round * communicator.size() + rank)) / communicator.size()).backward();
    }
    model->zero_grad();
    loss(model, input_of(round * communicator.size() + communicator.rank())).backward();
    EXPECT_TRUE(close(gradients_of(*model), gradients_of(*reference), 1e-6)) << "round " << round;
  }
  // In the first pass nobody knew that the layer comes twice: it cost a second round. Later passes wait for both.
  EXPECT_EQ(ddp.stats().rounds, 5);
});
TEST(Reducer, ReentrantCheckpointing) {
  reentrant.everywhere();
}

const RankCase zero_grad_on_the_module("zero_grad_on_the_module", [](const Communicator& communicator) {
  Mlp reference;
  Mlp model;
  DistributedDataParallel ddp(model, communicator);
  for (int round = 0; round < 4; ++round) {
    for (const auto& net : {reference, model}) {
      auto copy = net;
      copy->zero_grad(/*set_to_none=*/round % 2 == 0);
    }
    for (int rank = 0; rank < communicator.size(); ++rank) {
      const Batch batch = batch_of(round * communicator.size() + rank);
      (loss_of(reference->forward(batch.input), batch.target) / communicator.size()).backward();
    }
    const Batch batch = batch_of(round * communicator.size() + communicator.rank());
    loss_of(model->forward(batch.input), batch.target).backward();
    EXPECT_TRUE(close(gradients_of(*model), gradients_of(*reference), 1e-6)) << "round " << round;
  }
});
TEST(Reducer, ZeroGradOnTheModule) {
  zero_grad_on_the_module.everywhere();
}

/// What a test of misuse needs: a model, its reducer, a prepared optimizer.
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
      loss_of(prepared.model->forward(batch.input), batch.target).backward();
      const std::string message = message_of<UsageError>([&] { prepared.optimizer.step(); });
      expect_mentions(message, "first.weight");
      expect_mentions(message, "Double");
    });
TEST(Reducer, ToDtypeAfterPrepareIsAnErrorThatNamesTheParameter) {
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
TEST(Reducer, UnfreezingAfterPrepareIsAnErrorThatNamesTheParameter) {
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
    });
TEST(Reducer, RawOptimizerStepOnLocalGradientsIsFound) {
  raw_optimizer_step_on_local_gradients_is_found.on_threads({2});
}

const ProcessCase replicas_that_drifted_are_found_on_all_ranks_by_name(
    "reducer: replicas that drifted are found on all ranks by name", [](const Communicator& communicator) {
      Prepared prepared(communicator, SyncPolicy::every_pass);
      prepared.pass(communicator.rank());
      prepared.optimizer.step();
      prepared.optimizer.zero_grad();
      if (communicator.rank() == 1) prepared.model->second->weight.data().add_(0.01);
      const std::string message = message_of<Divergence>([&] { prepared.pass(communicator.rank()); });
      expect_mentions(message, "second.weight");
      expect_mentions(message, "rank 1");
      expect_mentions(message_of<UsageError>([&] { prepared.optimizer.step(); }), "lost");
    });
TEST(Reducer, ReplicasThatDriftedAreFoundOnAllRanksByName) {
  replicas_that_drifted_are_found_on_all_ranks_by_name.on_threads({3});
}

// Of a small parameter every element is looked at.
const ProcessCase one_element_drifts("reducer: one element drifts", [](const Communicator& communicator) {
  Prepared prepared(communicator, SyncPolicy::every_pass);
  for (std::int64_t element = 0; element < prepared.model->first->bias.numel(); ++element) {
    prepared.pass(communicator.rank());
    prepared.optimizer.step();
    prepared.optimizer.zero_grad();
    const at::Tensor drifting = prepared.model->first->bias.data().narrow(0, element, 1);
    if (communicator.rank() == 1) drifting.add_(1e-4);
    const std::string message = message_of<Divergence>([&] { prepared.pass(communicator.rank()); });
    expect_mentions(message, "first.bias");
    prepared.optimizer.zero_grad();
    communicator.broadcast(prepared.model->first->bias.data(), 0).wait();
  }
});
TEST(Reducer, OneElementThatDriftedIsFound) {
  one_element_drifts.on_threads({2});
}

// Of a large one the elements are sampled: a step, which changes a part of it, is seen, also a short one.
TEST(Reducer, AStepOfAPartOfALargeParameterIsFound) {
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
TEST(Reducer, CreateGraphIsRefused) {
  create_graph_is_refused.on_threads({2});
}

const ProcessCase errors_can_be_replaced(
    "reducer: errors of passes can be replaced", [](const Communicator& communicator) {
      Linear model(4, 1);
      int told = 0;
      const auto replace = [&](const std::exception_ptr& error) {
        ++told;
        EXPECT_THROW(std::rethrow_exception(error), UsageError);
        throw std::domain_error("in another language");
      };
      const DistributedDataParallel ddp(model, communicator, {.pass_error = replace});
      EXPECT_THROW(model(input_of(0)).sum().backward({}, true, /*create_graph=*/true), std::domain_error);
      EXPECT_EQ(told, 1);
    });
TEST(Reducer, ErrorsOfPassesCanBeReplaced) {
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
  expect_mentions(message_of<Divergence>([&] { prepared.pass(communicator.rank()); }), "second.weight");
});
TEST(Reducer, ReplicasAreNotComparedWhileRanksStandBy) {
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
      prepared.reducer->synchronize();  // what the message says to do, before touching them
      prepared.model->first->weight.mutable_grad().mul_(0.5);
      prepared.optimizer.step();
    });
TEST(Reducer, GradientsTouchedBeforeAnEarlyStepAreRefused) {
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
TEST(Reducer, GradientsThatNoPassBroughtAreRefused) {
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
      expect_mentions(message_of<Divergence>([&] { prepared.pass(1); }), "step");
    });
TEST(Reducer, ADifferentNumberOfSynchronizingPassesIsADivergence) {
  a_different_number_of_synchronizing_passes_is_a_divergence.on_threads({2});
}

const ProcessCase different_models_are_a_divergence_that_names_the_difference(
    "reducer: different models are a divergence that names the difference", [](const Communicator& communicator) {
      torch::nn::Linear model(4, communicator.rank() == 2 ? 3 : 2);
      const std::string message = message_of<Divergence>([&] { DistributedDataParallel ddp(model, communicator); });
      expect_mentions(message, "'weight'");
      expect_mentions(message, "[3, 4]");
      expect_mentions(message, "rank 2");
    });
TEST(Reducer, DifferentModelsAreADivergenceThatNamesTheDifference) {
  different_models_are_a_divergence_that_names_the_difference.on_threads({3});
}

/// Throws in backward where told to.
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

// Rank 1's backward throws half-way through a pass in which the others synchronize.
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
        const std::string message = message_of<PeerFailure>([&] { pass(false); });
        expect_mentions(message, "rank 1 abandoned");
        expect_mentions(message_of<UsageError>([&] { prepared.optimizer.step(); }), "lost");
        prepared.optimizer.zero_grad();
      }
      pass(false);
      prepared.optimizer.step();
      EXPECT_EQ(prepared.reducer->stats().rounds, communicator.rank() == 1 ? 1 : 2);
    });
TEST(Reducer, AnExceptionInBackwardIsToldToTheOthersAndTheNextStepWorks) {
  an_exception_in_backward_is_told_to_the_others_and_the_next_step_works.on_threads({3});
}

}  // namespace
}  // namespace tutti::test::reducer_test
