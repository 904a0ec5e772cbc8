// Recipes of Accelerate programs beyond the plain loop, one function each (docs/guides/from_accelerate.md).
//
//   tutti launch -n 2 -- guide_from_accelerate [FILE of the model with tied weights, to write]
#include <ATen/Parallel.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/embedding.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <tutti/checkpoint/model_file.h>
#include <tutti/comm/communicator.h>
#include <tutti/train/accelerator.h>
#include <tutti/train/local_sgd.h>
#include <tutti/train/trainer.h>

#include <cstdint>
#include <exception>
#include <iostream>
#include <iterator>
#include <string>
#include <vector>

#include "digest.h"
#include "guides/toy.h"

namespace {

/// Each recipe uses its own communicator.
tutti::AcceleratorOptions on(const tutti::Communicator& communicator, const std::string& name) {
  return {.communicator = communicator.duplicate(name)};
}

void say(const tutti::Accelerator& accelerator, const std::string& recipe, double value) {
  accelerator.print(recipe + ": " + std::to_string(value));
}

at::Tensor real_or_fake(torch::nn::Sequential& critic, const at::Tensor& points, bool real) {
  const auto judged = critic->forward(points);
  return torch::binary_cross_entropy_with_logits(judged, real ? at::ones_like(judged) : at::zeros_like(judged));
}

/// Several models with an optimizer each: a GAN.
void several_models(const tutti::Communicator& communicator) {
  auto options = on(communicator, "several models");
  options.gradient_accumulation_steps = 2;
  tutti::Accelerator accelerator(options);
  auto loader = accelerator.data_loader(toy::Points(256), {.batch_size = 16, .shuffle = true});
  auto critic = toy::make_net(1);
  torch::nn::Sequential generator(torch::nn::Linear(4, 32), torch::nn::GELU(), torch::nn::Linear(32, 8));
  auto [d, d_optimizer, g, g_optimizer] =
      accelerator.prepare(critic, torch::optim::AdamW(critic->parameters(), 1e-3), generator,
                          torch::optim::AdamW(generator->parameters(), 1e-3));
  at::Tensor loss;
  for (auto& batch : loader) {
    const auto window = accelerator.accumulate(d, g);  // both windows
    const auto made = g->forward(at::randn({batch.data.size(0), 4}));
    d_optimizer.zero_grad();
    accelerator.backward(real_or_fake(d, batch.data, true) + real_or_fake(d, made.detach(), false));
    d_optimizer.step();
    for (auto& parameter : d->parameters()) parameter.requires_grad_(false);
    g_optimizer.zero_grad();
    loss = real_or_fake(d, made, true);
    accelerator.backward(loss);
    g_optimizer.step();
    for (auto& parameter : d->parameters()) parameter.requires_grad_(true);
  }
  say(accelerator, "several models, generator's loss", loss.item<double>());
}

/// Two models, with equal bits on 1, 2 and 4 ranks.
void reproducible_models(const tutti::Communicator& communicator) {
  auto options = on(communicator, "reproducible models");
  options.reproducible = tutti::ReproducibleOptions{.micro_batches = 4};
  tutti::Accelerator accelerator(options);
  auto loader = accelerator.data_loader(toy::Points(256), {.batch_size = 8, .shuffle = true});
  auto critic = toy::make_net(1);
  torch::nn::Sequential generator(torch::nn::Linear(8, 32), torch::nn::GELU(), torch::nn::Linear(32, 8));
  auto [d, d_optimizer, g, g_optimizer] =
      accelerator.prepare(critic, torch::optim::AdamW(critic->parameters(), 1e-3), generator,
                          torch::optim::AdamW(generator->parameters(), 1e-3));
  std::vector<torch::data::Example<>> step;  // the micro-batches of this rank in a step
  for (auto& batch : loader) {
    step.push_back(batch);
    if (std::ssize(step) < accelerator.gradient_accumulation_steps()) continue;
    for (auto& one : step) {
      const auto window = accelerator.accumulate(d);
      const auto made = g->forward(one.data).detach();
      accelerator.backward(real_or_fake(d, one.data, true) + real_or_fake(d, made, false));
      d_optimizer.step();
      d_optimizer.zero_grad();
    }
    for (auto& parameter : d->parameters()) parameter.requires_grad_(false);
    for (auto& one : step) {
      const auto window = accelerator.accumulate(g);
      accelerator.backward(real_or_fake(d, g->forward(one.data), true));
      g_optimizer.step();
      g_optimizer.zero_grad();
    }
    for (auto& parameter : d->parameters()) parameter.requires_grad_(true);
    step.clear();
  }
  accelerator.print("reproducible models, digests: " + digest(*critic) + " " + digest(*generator));
}

/// One rank makes all ranks stop in the middle of a window, as in reinforcement learning.
void early_break(const tutti::Communicator& communicator) {
  auto options = on(communicator, "early break");
  options.gradient_accumulation_steps = 4;
  tutti::Accelerator accelerator(options);
  auto loader = accelerator.data_loader(toy::Points(512), {.batch_size = 8});
  auto net = toy::make_net();
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.05));
  std::int64_t batches = 0;
  for (auto& batch : loader) {
    {
      const auto window = accelerator.accumulate(model);
      accelerator.backward(torch::mse_loss(model->forward(batch.data), batch.target));
      optimizer.step();
      optimizer.zero_grad();
    }
    if (++batches == 6 && accelerator.is_last_process()) accelerator.set_trigger();  // on this rank only
    if (accelerator.check_trigger()) {                                               // true on all ranks
      accelerator.discard_accumulation(model);
      break;
    }
  }
  say(accelerator, "early break, batches", static_cast<double>(batches));
}

/// Frozen layers that are unfrozen later.
void freezing(const tutti::Communicator& communicator) {
  tutti::Accelerator accelerator(on(communicator, "freezing"));
  auto loader = accelerator.data_loader(toy::Points(128), {.batch_size = 16});
  auto net = toy::make_net();
  const auto freeze = [&](bool frozen) {
    for (auto& parameter : net->ptr(0)->parameters()) parameter.requires_grad_(!frozen);
  };
  const at::Tensor before = net->parameters()[0].detach().clone();
  freeze(true);
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.05));
  const auto train = [&, &used = model, &sgd = optimizer] {
    for (auto& batch : loader) {
      accelerator.backward(torch::mse_loss(used->forward(batch.data), batch.target));
      sgd.step();
      sgd.zero_grad();
    }
    return (net->parameters()[0].detach() - before).abs().max().item<double>();
  };
  say(accelerator, "frozen, first layer moved by", train());
  freeze(false);
  accelerator.prepare(net, optimizer);  // again, between steps, with the same optimizer
  say(accelerator, "unfrozen, first layer moved by", train());
}

/// The embedding and the last layer of a language model share one tensor.
struct TiedImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& tokens) { return torch::linear(embedding->forward(tokens), embedding->weight); }

  torch::nn::Embedding embedding = register_module("embedding", torch::nn::Embedding(32, 8));
};
TORCH_MODULE(Tied);

void tied_weights(const tutti::Communicator& communicator, const std::string& file) {
  tutti::Accelerator accelerator(on(communicator, "tied weights"));
  torch::manual_seed(1);
  Tied net;
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::AdamW(net->parameters(), 1e-2));
  at::Tensor loss;
  for (int step = 0; step < 20; ++step) {
    const auto tokens = at::arange(32);
    loss = torch::cross_entropy_loss(model->forward(tokens), (tokens + 1) % 32);
    accelerator.backward(loss);
    optimizer.step();
    optimizer.zero_grad();
  }
  say(accelerator, "tied weights, loss", loss.item<double>());
  if (!file.empty() && accelerator.is_main_process()) tutti::save_model(*model, file);
}

/// An embedding with sparse gradients, which hold the used rows. SGD and Adagrad accept them without weight decay.
void sparse_embedding(const tutti::Communicator& communicator) {
  tutti::Accelerator accelerator(on(communicator, "sparse embedding"));
  torch::manual_seed(1);
  torch::nn::Embedding net(torch::nn::EmbeddingOptions(10'000, 8).sparse(true));
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::Adagrad(net->parameters(), 0.1));
  at::Tensor loss;
  for (int step = 0; step < 20; ++step) {
    const auto rows = at::arange(4) + 4 * accelerator.rank();  // different rows on each rank
    loss = model->forward(rows).square().sum();
    accelerator.backward(loss);
    optimizer.step();
    optimizer.zero_grad();
  }
  say(accelerator, "sparse embedding, loss", loss.item<double>());
}

/// The Trainer lowers the learning rate when the evaluation's loss stops falling.
void plateau(const tutti::Communicator& communicator) {
  tutti::Accelerator accelerator(on(communicator, "plateau"));
  auto loader = accelerator.data_loader(toy::Points(128), {.batch_size = 16});
  auto net = toy::make_net();
  auto [model, optimizer, scheduler] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.05),
                                                           tutti::PlateauOptions{.factor = 0.5, .patience = 0});
  using Functions = tutti::TrainerFunctions<torch::nn::Sequential, torch::data::Example<>>;
  tutti::Trainer trainer(
      accelerator, model, optimizer, scheduler, loader,
      Functions{
          .loss = [](auto& some, auto& batch) { return torch::mse_loss(some->forward(batch.data), batch.target); }},
      {.max_steps = 16, .evaluate_every = 4, .stop_on_signal = false, .progress_bar = false});
  trainer.set_evaluation([] { return tutti::Scalars{{"loss", 1.0}}; });  // it never falls
  trainer.fit();
  say(accelerator, "plateau, rate", optimizer.learning_rate());
}

/// Local SGD first, synchronous steps at the end.
void local_then_synchronous(const tutti::Communicator& communicator) {
  tutti::Accelerator accelerator(on(communicator, "local then synchronous"));
  auto loader = accelerator.data_loader(toy::Points(512), {.batch_size = 16, .shuffle = true});
  auto net = toy::make_net();
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::AdamW(net->parameters(), 1e-2));
  tutti::LocalSGD local_sgd(accelerator, model, {.local_sgd_steps = 4});
  at::Tensor loss;
  for (int epoch = 0; epoch < 4; ++epoch) {
    if (epoch == 3) local_sgd.finish();  // from here on every step synchronizes gradients
    for (auto& batch : loader) {
      loss = torch::mse_loss(model->forward(batch.data), batch.target);
      accelerator.backward(loss);
      optimizer.step();
      optimizer.zero_grad();
      local_sgd.step();  // no effect after finish()
    }
  }
  say(accelerator, "local, then synchronous, loss",
      accelerator.reduce(loss.detach(), tutti::ReduceOp::mean).item<double>());
}

}  // namespace

int main(int argc, char** argv) {
  try {
    at::set_num_threads(1);
    const auto communicator = tutti::Communicator::connect(tutti::read_environment());
    several_models(communicator);
    reproducible_models(communicator);
    early_break(communicator);
    freezing(communicator);
    tied_weights(communicator, argc > 1 ? argv[1] : "");
    sparse_embedding(communicator);
    plateau(communicator);
    local_then_synchronous(communicator);
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "from_accelerate: " << error.what() << '\n';
    return 1;
  }
}
