// Trains a program of torch.export (docs/guides/exported.md), and the same model written in C++. Both end with the same
// parameters.
//
//   tutti launch -n 2 -- guide_exported points.pt2 [points.safetensors]     # writes the parameters to the second file
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <torch/nn/functional/loss.h>
#include <torch/optim/adamw.h>
#include <tutti/comm/communicator.h>
#include <tutti/exported/exported_module.h>
#include <tutti/train/accelerator.h>

#include <exception>
#include <iostream>
#include <memory>
#include <string>

#include "digest.h"
#include "guides/toy.h"

namespace {

template <typename Net>
void train(const std::string& name, Net net, const tutti::Communicator& communicator) {
  tutti::Accelerator accelerator({.gradient_accumulation_steps = 2, .communicator = communicator.duplicate(name)});
  auto loader = accelerator.data_loader(toy::Points(1024), {.batch_size = 16});
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::AdamW(net->parameters(), 1e-2));
  double loss_of_last = 0;
  for (int epoch = 0; epoch < 4; ++epoch) {
    for (auto& batch : loader) {
      const auto window = accelerator.accumulate(model);
      const auto loss = torch::mse_loss(model->forward(batch.data), batch.target);
      accelerator.backward(loss);
      accelerator.clip_grad_norm_(model, 1.0);
      optimizer.step();
      optimizer.zero_grad();
      loss_of_last = loss.template item<double>();
    }
  }
  accelerator.print(name + ": loss " + std::to_string(loss_of_last) + ", digest " + digest(*model));
}

/// The guide's model in C++, with the program's weights.
torch::nn::Sequential by_hand(const tutti::ExportedModule& program) {
  auto net = toy::make_net();
  const torch::NoGradGuard no_grad;
  const auto from = program.parameters(), into = net->parameters();
  for (std::size_t i = 0; i < into.size(); ++i) into.at(i).copy_(from.at(i));
  return net;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc < 2) throw tutti::UsageError("missing argument: the path of a file that torch.export.save wrote");
    at::set_num_threads(1);
    const auto communicator = tutti::Communicator::connect(tutti::read_environment());
    const auto net = std::make_shared<tutti::ExportedModule>(argv[1]);
    train("by hand", by_hand(*net), communicator);
    train("exported", net, communicator);
    if (argc > 2 && communicator.rank() == 0) net->save(argv[2]);
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "exported: " << error.what() << '\n';
    return 1;
  }
}
