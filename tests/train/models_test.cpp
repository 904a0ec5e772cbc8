// Unusual models, parameters and optimizers: each ends with the parameters of one process.
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/sgd.h>

#include "support/rank_case.h"
#include "support/training.h"
#include "tutti/core/error.h"
#include "tutti/optim/schedules.h"
#include "tutti/train/accelerator.h"

namespace tutti::test::models_test {
namespace {

/// Steps of a job of `ranks` ranks on one process: each step is the mean over all ranks' micro-batches.
template <typename Model>
void train_alone(Model& model, torch::optim::Optimizer& optimizer, int ranks, std::int64_t steps,
                 const std::function<at::Tensor(Model&, std::int64_t)>& loss) {
  for (std::int64_t step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    for (std::int64_t rank = 0; rank < ranks; ++rank) (loss(model, step * ranks + rank) / ranks).backward();
    optimizer.step();
  }
}

at::Tensor mlp_loss(Mlp& model, std::int64_t index) {
  const Batch batch = batch_of(index, model->first->weight.scalar_type());
  return loss_of(model->forward(batch.input), batch.target);
}

// A model with several dtypes. A bucket holds one dtype.
struct TwoTypesImpl : torch::nn::Module {
  TwoTypesImpl() : wide(register_module("wide", Mlp(1, at::kDouble))), narrow(register_module("narrow", Mlp(2))) {}
  Mlp wide{nullptr};
  Mlp narrow{nullptr};
};
TORCH_MODULE(TwoTypes);

const RankCase several_dtypes("models_several_dtypes", [](const Communicator& communicator) {
  const auto loss = [](TwoTypes& model, std::int64_t i) {
    return mlp_loss(model->wide, i) + mlp_loss(model->narrow, i);
  };
  TwoTypes alone;
  torch::optim::AdamW alone_optimizer(alone->parameters(), 0.01);
  train_alone<TwoTypes>(alone, alone_optimizer, communicator.size(), 4, loss);

  Accelerator accelerator({.communicator = communicator});
  TwoTypes net;
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::AdamW(net->parameters(), 0.01));
  for (std::int64_t step = 0; step < 4; ++step) {
    loss(model, step * communicator.size() + communicator.rank()).backward();
    optimizer.step();
    optimizer.zero_grad();
  }
  EXPECT_TRUE(close(model->parameters(), alone->parameters()));
});
TEST(Models, SeveralDtypes) {
  several_dtypes.everywhere();
}

// Two optimizers over one model. The window of one optimizer is twice as long.
const RankCase two_optimizers("models_two_optimizers", [](const Communicator& communicator) {
  const std::int64_t ranks = communicator.size();
  Mlp alone;
  torch::optim::SGD alone_first(alone->first->parameters(), 0.1);
  torch::optim::AdamW alone_second(alone->second->parameters(), 0.01);
  Accelerator accelerator({.communicator = communicator});
  Mlp net;
  auto [model, first, second] = accelerator.prepare(net, torch::optim::SGD(net->first->parameters(), 0.1),
                                                    torch::optim::AdamW(net->second->parameters(), 0.01));
  for (std::int64_t step = 0; step < 8; ++step) {
    for (std::int64_t rank = 0; rank < ranks; ++rank) (mlp_loss(alone, step * ranks + rank) / ranks).backward();
    mlp_loss(model, step * ranks + communicator.rank()).backward();
    alone_first.step();
    alone_first.zero_grad();
    first.step();
    first.zero_grad();
    if (step % 2 == 0) continue;
    alone_second.step();
    alone_second.zero_grad();
    second.step();
    second.zero_grad();
  }
  EXPECT_TRUE(close(model->parameters(), alone->parameters()));
});
TEST(Models, TwoOptimizersOverOneModel) {
  two_optimizers.everywhere();
}

const RankCase two_models("models_two_models", [](const Communicator& communicator) {
  const auto all_of = [](const Mlp& one, const Mlp& other) {
    auto all = one->parameters();
    for (const at::Tensor& parameter : other->parameters()) all.push_back(parameter);
    return all;
  };
  const std::int64_t ranks = communicator.size();
  Mlp alone_one(1), alone_other(2);
  torch::optim::AdamW alone_optimizer(all_of(alone_one, alone_other), 0.01);
  Accelerator accelerator({.gradient_accumulation_steps = 2, .communicator = communicator});
  Mlp net_one(1), net_other(2);
  auto [one, other, optimizer] =
      accelerator.prepare(net_one, net_other, torch::optim::AdamW(all_of(net_one, net_other), 0.01));
  for (std::int64_t pass = 0; pass < 6; ++pass) {
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
      const std::int64_t i = pass * ranks + rank;
      ((mlp_loss(alone_one, i) + mlp_loss(alone_other, i)) / (2 * ranks)).backward();
    }
    const auto window = accelerator.accumulate(one, other);
    const std::int64_t mine = pass * ranks + communicator.rank();
    accelerator.backward(mlp_loss(one, mine) + mlp_loss(other, mine));
    optimizer.step();
    optimizer.zero_grad();
    if (pass % 2 == 0) continue;
    alone_optimizer.step();
    alone_optimizer.zero_grad();
  }
  EXPECT_TRUE(close(all_of(one, other), all_of(alone_one, alone_other)));
});
TEST(Models, OneOptimizerOverTwoModels) {
  two_models.everywhere();
}

// LBFGS asks for loss and gradients several times in a step, and its line search compares losses: all ranks must see
// the mean over all ranks in each call.
const RankCase lbfgs("models_lbfgs", [](const Communicator& communicator) {
  const std::int64_t ranks = communicator.size();
  const auto options = torch::optim::LBFGSOptions(0.5).max_iter(6).line_search_fn("strong_wolfe");
  Mlp alone(1, at::kDouble);
  torch::optim::LBFGS alone_optimizer(alone->parameters(), options);
  Accelerator accelerator({.communicator = communicator});
  Mlp net(1, at::kDouble);
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::LBFGS(net->parameters(), options));
  for (int step = 0; step < 3; ++step) {
    int alone_calls = 0;
    int calls = 0;
    const at::Tensor alone_loss = alone_optimizer.step([&] {
      ++alone_calls;
      alone_optimizer.zero_grad();
      at::Tensor loss = at::zeros({}, at::kDouble);
      for (std::int64_t rank = 0; rank < ranks; ++rank) loss = loss + mlp_loss(alone, rank) / ranks;
      loss.backward();
      return loss;
    });
    const at::Tensor loss = optimizer.step([&, &model = model, &optimizer = optimizer] {
      ++calls;
      optimizer.zero_grad();
      const at::Tensor mine = mlp_loss(model, communicator.rank());
      mine.backward();
      return mine;
    });
    EXPECT_NEAR(loss.item<double>(), alone_loss.item<double>(), 1e-9);
    EXPECT_EQ(calls, alone_calls);
  }
  EXPECT_TRUE(close(model->parameters(), alone->parameters(), 1e-6));

  const auto window = accelerator.accumulate(model);
  EXPECT_THROW(optimizer.step([] { return at::zeros({}); }), UsageError);
});
TEST(Models, LbfgsSeesTheMeanInEveryCall) {
  lbfgs.everywhere();
}

// The second half of the model is frozen at first, then trained. The first optimizer keeps its state.
const RankCase unfrozen("models_unfrozen", [](const Communicator& communicator) {
  const std::int64_t ranks = communicator.size();
  const auto freeze = [](Mlp& model, bool frozen) {
    for (at::Tensor& parameter : model->second->parameters()) parameter.requires_grad_(!frozen);
  };
  Mlp alone;
  torch::optim::AdamW alone_optimizer(alone->parameters(), 0.01);
  freeze(alone, true);
  train_alone<Mlp>(alone, alone_optimizer, communicator.size(), 3, mlp_loss);
  freeze(alone, false);
  for (std::int64_t step = 3; step < 6; ++step) {
    alone_optimizer.zero_grad();
    for (std::int64_t rank = 0; rank < ranks; ++rank) (mlp_loss(alone, step * ranks + rank) / ranks).backward();
    alone_optimizer.step();
  }

  Accelerator accelerator({.communicator = communicator});
  Mlp net;
  freeze(net, true);
  auto [model, optimizer, schedule] =
      accelerator.prepare(net, torch::optim::AdamW(net->parameters(), 0.01), linear_with_warmup(0, 1'000'000));
  const auto step_on = [&, &model = model, &optimizer = optimizer](std::int64_t step) {
    mlp_loss(model, step * ranks + communicator.rank()).backward();
    optimizer.step();
    optimizer.zero_grad();
  };
  for (std::int64_t step = 0; step < 3; ++step) step_on(step);
  mlp_loss(model, 0).backward();
  EXPECT_THROW(accelerator.prepare(model, optimizer), UsageError);  // a backward pass without its step
  optimizer.zero_grad();
  freeze(net, false);
  accelerator.prepare(model, optimizer);
  // The earlier copy of the prepared optimizer stays valid.
  for (std::int64_t step = 3; step < 6; ++step) step_on(step);
  EXPECT_TRUE(close(model->parameters(), alone->parameters()));
});
TEST(Models, UnfrozenAndPreparedAgain) {
  unfrozen.everywhere();
}

const RankCase not_prepared_again("models_not_prepared_again", [](const Communicator& communicator) {
  Accelerator accelerator({.communicator = communicator});
  Mlp net;
  for (at::Tensor& parameter : net->second->parameters()) parameter.requires_grad_(false);
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
  for (at::Tensor& parameter : net->second->parameters()) parameter.requires_grad_(true);
  try {
    mlp_loss(model, 0).backward();
    optimizer.step();
    FAIL() << "no error";
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("prepare the model again"), std::string::npos) << error.what();
  }
});
TEST(Models, UnfrozenAndNotPreparedAgainIsNamed) {
  not_prepared_again.on_threads({1, 2, 3});
}

// A layer is added during training. The other layers keep their state.
struct GrowingImpl : torch::nn::Module {
  GrowingImpl() : body(register_module("body", Mlp(1))) {}
  void grow() { gain = register_parameter("gain", at::ones({3})); }
  at::Tensor loss(std::int64_t i) {
    const Batch batch = batch_of(i);
    at::Tensor out = body->forward(batch.input);
    if (gain.defined()) out = out * gain;
    return loss_of(out, batch.target);
  }
  Mlp body{nullptr};
  at::Tensor gain;
};
TORCH_MODULE(Growing);

const RankCase grown("models_grown", [](const Communicator& communicator) {
  const std::int64_t ranks = communicator.size();
  Growing alone;
  torch::optim::AdamW alone_optimizer(alone->parameters(), 0.01);
  const auto loss = [](Growing& model, std::int64_t i) { return model->loss(i); };
  train_alone<Growing>(alone, alone_optimizer, communicator.size(), 2, loss);
  alone->grow();
  alone_optimizer.param_groups()[0].params().push_back(alone->gain);
  train_alone<Growing>(alone, alone_optimizer, communicator.size(), 2, loss);

  Accelerator accelerator({.communicator = communicator});
  Growing net;
  torch::optim::AdamW adamw(net->parameters(), 0.01);
  auto [model, optimizer] = accelerator.prepare(net, adamw);
  for (std::int64_t step = 0; step < 4; ++step) {
    if (step == 2) {
      net->grow();
      adamw.param_groups()[0].params().push_back(net->gain);
      accelerator.prepare(net, adamw);
    }
    model->loss(step % 2 * ranks + communicator.rank()).backward();
    optimizer.step();
    optimizer.zero_grad();
  }
  EXPECT_TRUE(close(model->parameters(), alone->parameters()));
});
TEST(Models, AParameterIsAdded) {
  grown.everywhere();
}

struct ImagesImpl : torch::nn::Module {
  ImagesImpl()
      : conv(register_module("conv", torch::nn::Conv2d(3, 4, 3))),
        norm(register_module("norm", torch::nn::BatchNorm2d(4))) {
    fill(*this, 3);
  }
  at::Tensor loss(std::int64_t i) {
    const at::Tensor images = random_tensor({2, 3, 6, 6}, static_cast<std::uint64_t>(i) + 50);
    return norm(conv(images)).square().mean() + conv(images).mean();
  }
  torch::nn::Conv2d conv{nullptr};
  torch::nn::BatchNorm2d norm{nullptr};
};
TORCH_MODULE(Images);

// Gradients keep the layout of their parameters.
const RankCase channels_last("models_channels_last", [](const Communicator& communicator) {
  Images alone;
  torch::optim::AdamW alone_optimizer(alone->parameters(), 0.01);
  const auto loss = [](Images& model, std::int64_t i) { return model->loss(i); };
  train_alone<Images>(alone, alone_optimizer, communicator.size(), 3, loss);

  Accelerator accelerator({.communicator = communicator});
  Images net;
  {
    const at::NoGradGuard no_grad;
    net->conv->weight.set_data(net->conv->weight.contiguous(at::MemoryFormat::ChannelsLast));
  }
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::AdamW(net->parameters(), 0.01));
  for (std::int64_t step = 0; step < 3; ++step) {
    model->loss(step * communicator.size() + communicator.rank()).backward();
    EXPECT_TRUE(model->conv->weight.grad().is_contiguous(at::MemoryFormat::ChannelsLast));
    optimizer.step();
    EXPECT_EQ(optimizer.not_fused_reason(), "");
    optimizer.zero_grad();
  }
  EXPECT_TRUE(close(model->parameters(), alone->parameters(), 1e-5));
});
TEST(Models, ChannelsLast) {
  channels_last.everywhere();
}

const RankCase layouts_differ("models_layouts_differ", [](const Communicator& communicator) {
  Accelerator accelerator({.communicator = communicator});
  Images net;
  if (communicator.rank() == 1) {
    net->conv->weight.set_data(net->conv->weight.detach().contiguous(at::MemoryFormat::ChannelsLast));
  }
  try {
    accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
    FAIL() << "no error";
  } catch (const MismatchError& error) {
    EXPECT_NE(std::string(error.what()).find("with strides"), std::string::npos) << error.what();
  }
});
TEST(Models, LayoutsThatDifferBetweenRanksAreNamed) {
  layouts_differ.on_threads({2, 3});
}

// BatchNorm's running statistics after steps on different data.
void check_buffers(const Communicator& communicator, BufferSync how) {
  Accelerator accelerator({.buffer_sync = how, .communicator = communicator});
  Images net;
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.0));
  // With a rate of 0 every rank can compute the statistics of all ranks.
  std::vector<at::Tensor> of_ranks;
  for (int rank = 0; rank < communicator.size(); ++rank) {
    Images other;
    other->loss(rank);
    of_ranks.push_back(other->norm->running_mean);
  }
  model->loss(communicator.rank()).backward();
  optimizer.step();
  at::Tensor expected = of_ranks[0];
  if (how == BufferSync::mean) expected = at::stack(of_ranks).mean(0);
  if (how == BufferSync::none) expected = of_ranks[static_cast<std::size_t>(communicator.rank())];
  EXPECT_TRUE(at::allclose(model->norm->running_mean, expected, 1e-5, 1e-7));
  EXPECT_EQ(model->norm->num_batches_tracked.item<std::int64_t>(), 1);
}
const RankCase buffers("models_buffers", [](const Communicator& communicator) {
  for (const auto how : {BufferSync::broadcast, BufferSync::mean, BufferSync::none}) check_buffers(communicator, how);
});
TEST(Models, BuffersFollowTheOption) {
  buffers.everywhere();
}

// Sparse gradients through the Accelerator: accumulation, clipping, Adagrad.
struct TableImpl : torch::nn::Module {
  explicit TableImpl(bool sparse)
      : words(register_module(
            "words", torch::nn::EmbeddingBag(torch::nn::EmbeddingBagOptions(20, 4).sparse(sparse).mode(torch::kSum)))) {
    fill(*this, 4);
  }
  at::Tensor loss(std::int64_t i) {
    return words(at::tensor({i % 20, (i * 7) % 20, (i * 3) % 20, i % 5}).view({2, 2})).square().mean();
  }
  torch::nn::EmbeddingBag words{nullptr};
};
TORCH_MODULE(Table);

const RankCase sparse_tables("models_sparse_tables", [](const Communicator& communicator) {
  Table results[] = {Table(false), Table(true)};
  for (Table& net : results) {
    Accelerator accelerator({.gradient_accumulation_steps = 2, .communicator = communicator});
    auto [model, optimizer] = accelerator.prepare(net, torch::optim::Adagrad(net->parameters(), 0.1));
    for (std::int64_t i = 0; i < 8; ++i) {
      const auto window = accelerator.accumulate(model);
      accelerator.backward(model->loss(i * communicator.size() + communicator.rank()));
      accelerator.clip_grad_norm_(model, 0.05);
      accelerator.clip_grad_value_(model, 0.02);
      optimizer.step();
      optimizer.zero_grad();
    }
  }
  EXPECT_TRUE(close(results[1]->parameters(), results[0]->parameters(), 1e-5));
});
TEST(Models, SparseTables) {
  sparse_tables.everywhere();
}

}  // namespace
}  // namespace tutti::test::models_test
