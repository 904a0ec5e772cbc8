// What autograd and users do to gradients between hooks: on threads, several ranks each.
#include "tutti/sync/reducer.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/optim/sgd.h>

#include "support/rank_case.h"
#include "support/training.h"
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

TEST(Reducer, ToDtypeAfterPrepareIsAnErrorThatNamesTheParameter) {
  run_thread_ranks(2, [](const Communicator& communicator) {
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
}

TEST(Reducer, UnfreezingAfterPrepareIsAnErrorThatNamesTheParameter) {
  run_thread_ranks(2, [](const Communicator& communicator) {
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
}

TEST(Reducer, RawOptimizerStepOnLocalGradientsIsFound) {
  run_thread_ranks(2, [](const Communicator& communicator) {
    Prepared prepared(communicator, SyncPolicy::manual);
    const auto quiet = NoSyncScope({prepared.reducer});
    prepared.pass(communicator.rank());
    prepared.raw->step();  // not the prepared one
    const std::string message = message_of<UsageError>([&] { prepared.pass(2 + communicator.rank()); });
    expect_mentions(message, "first.weight");
    expect_mentions(message, "prepare()");
  });
}

TEST(Reducer, ReplicasThatDriftedAreFoundOnAllRanksByName) {
  run_thread_ranks(3, [](const Communicator& communicator) {
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
}

TEST(Reducer, CreateGraphIsRefused) {
  run_thread_ranks(2, [](const Communicator& communicator) {
    Prepared prepared(communicator);
    const Batch batch = batch_of(0);
    const at::Tensor loss = loss_of(prepared.model->forward(batch.input), batch.target);
    expect_mentions(message_of<UsageError>([&] { loss.backward({}, true, /*create_graph=*/true); }), "create_graph");
  });
}

TEST(Reducer, GradientsTouchedBeforeAnEarlyStepAreRefused) {
  run_thread_ranks(2, [](const Communicator& communicator) {
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
}

TEST(Reducer, GradientsThatNoPassBroughtAreRefused) {
  run_thread_ranks(2, [](const Communicator& communicator) {
    Prepared prepared(communicator);
    prepared.model->first->bias.mutable_grad() = at::ones({8}) * communicator.rank();
    expect_mentions(message_of<UsageError>([&] { prepared.optimizer.step(); }), "first.bias");
    prepared.reducer->synchronize();
    EXPECT_TRUE(at::equal(prepared.model->first->bias.grad(), at::full({8}, 0.5F)));
    prepared.optimizer.step();
  });
}

TEST(Reducer, ADifferentNumberOfSynchronizingPassesIsADivergence) {
  run_thread_ranks(2, [](const Communicator& communicator) {
    Prepared prepared(communicator, SyncPolicy::every_pass);
    prepared.pass(0);
    if (communicator.rank() == 1) {
      prepared.optimizer.step();
      prepared.optimizer.zero_grad();
    }
    expect_mentions(message_of<Divergence>([&] { prepared.pass(1); }), "step");
  });
}

TEST(Reducer, DifferentModelsAreADivergenceThatNamesTheDifference) {
  run_thread_ranks(3, [](const Communicator& communicator) {
    torch::nn::Linear model(4, communicator.rank() == 2 ? 3 : 2);
    const std::string message = message_of<Divergence>([&] { DistributedDataParallel ddp(model, communicator); });
    expect_mentions(message, "'weight'");
    expect_mentions(message, "[3, 4]");
    expect_mentions(message, "rank 2");
  });
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
TEST(Reducer, AnExceptionInBackwardIsToldToTheOthersAndTheNextStepWorks) {
  run_thread_ranks(3, [](const Communicator& communicator) {
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
}

}  // namespace
}  // namespace tutti::test::reducer_test
