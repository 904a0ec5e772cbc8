// Uncommon paths of gradients through autograd: 1 to 3 ranks as threads and as processes.
#include "tutti/detail/sync/reducer.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include "support/rank_case.h"
#include "support/training.h"
#include "sync/segment.h"
#include "tutti/sync/distributed_data_parallel.h"

namespace tutti::test::reducer_test {
namespace {

using torch::nn::Linear;

/// A model with a shared layer, a layer that is not always used, and a frozen layer.
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

/// Gradients that reach the parameters as lazy conjugates and negations.
struct SpectrumImpl : torch::nn::Module {
  at::Tensor loss(std::int64_t index) {
    const at::Tensor x = input_of(index);
    const at::Tensor conjugate = weight.conj();
    return (at::real(conjugate) * x + at::imag(conjugate) * bias).square().sum() + conjugate.sum().abs();
  }
  at::Tensor weight = register_parameter("weight", at::complex(input_of(1), input_of(2)));
  at::Tensor bias = register_parameter("bias", random_tensor({4}, 3));
};
TORCH_MODULE(Spectrum);

const RankCase conjugated("reducer_conjugated", [](const Communicator& communicator) {
  Spectrum reference;
  Spectrum model;
  DistributedDataParallel ddp(model, communicator);
  for (int round = 0; round < 2; ++round) {
    for (int rank = 0; rank < communicator.size(); ++rank) {
      (reference->loss(round * communicator.size() + rank) / communicator.size()).backward();
    }
    model->loss(round * communicator.size() + communicator.rank()).backward();
    EXPECT_TRUE(at::allclose(model->weight.grad(), reference->weight.grad(), 1e-4, 1e-5)) << round;
    EXPECT_TRUE(at::allclose(model->bias.grad(), reference->bias.grad(), 1e-4, 1e-5)) << round;
  }
});
TEST(Reducer, SumsTheValuesOfLazilyConjugatedGradients) {
  conjugated.on_threads({1, 2, 3});
}

const RankCase unused_tied_frozen("unused_tied_frozen", [](const Communicator& communicator) {
  Awkward reference;
  Awkward model;
  DistributedDataParallel ddp(model, communicator);
  for (int round = 0; round < 3; ++round) {
    // Only the last rank uses the layer. In the last round no rank uses the layer.
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

/// Activation checkpointing: backward runs forward again and a nested backward pass.
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
  // In the first pass the reducer does not know that the layer runs twice, and synchronizes a second time. Later passes
  // wait for both runs.
  EXPECT_EQ(ddp.stats().syncs, 5);
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

// No callback reports the end of a pass in which only the layer's nested pass reaches parameters.
TEST(Reducer, ASavedWindowHasAPassWhoseEndNoCallbackReports) {
  run_thread_ranks(1, [](const Communicator& communicator) {
    Mlp model;
    Reducer reducer(named_parameters_of(*model), communicator.duplicate("nested"));
    reducer.enter_no_sync();
    const at::Tensor x = batch_of(0).input.requires_grad_();
    torch::autograd::grad({Segment::apply(x, model->first).sum()}, {x});
    reducer.leave_no_sync();
    EXPECT_EQ(reducer.state_dict().get<std::int64_t>("window.pending"), 1);
  });
}

}  // namespace
}  // namespace tutti::test::reducer_test
