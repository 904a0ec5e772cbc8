// Trains on the accelerator of this machine, or on its CPU (docs/guides/devices.md).
//
//   tutti launch -n 2 -- guide_devices               # a device for each rank: cuda:0, cuda:1
//   tutti launch -n 2 -- guide_devices cuda:0        # both ranks on one device
#include <ATen/DeviceAccelerator.h>
#include <torch/nn/functional/loss.h>
#include <torch/optim/adamw.h>
#include <tutti/train/accelerator.h>

#include <exception>
#include <iostream>
#include <string>

#include "guides/toy.h"

namespace {

void train(at::Device device) {
  tutti::Accelerator accelerator({.gradient_accumulation_steps = 2, .device = device});
  const auto& communicator = accelerator.communicator();
  std::cout << "rank " << accelerator.rank() << " on " << accelerator.device() << ", backend "
            << communicator.backend_name() << std::endl;
  auto loader = accelerator.data_loader(toy::Points(1024), {.batch_size = 16, .shuffle = true});
  auto net = toy::make_net();
  net->to(accelerator.device());  // before the optimizer is created
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::AdamW(net->parameters(), 1e-2));
  for (int epoch = 1; epoch <= 4; ++epoch) {
    at::Tensor sum;  // on the device: loss.item() in the loop would make the host wait in every batch
    for (auto& batch : loader) {
      const auto window = accelerator.accumulate(model);
      const auto loss = torch::mse_loss(model->forward(batch.data), batch.target);
      accelerator.backward(loss);
      accelerator.clip_grad_norm_(model, 1.0);
      optimizer.step();
      optimizer.zero_grad();
      sum = sum.defined() ? sum + loss.detach() : loss.detach();
    }
    const auto mean = accelerator.reduce(sum / static_cast<double>(loader.size()), tutti::ReduceOp::mean);
    accelerator.print("epoch " + std::to_string(epoch) + ", loss " + std::to_string(mean.item<double>()));
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    train(argc > 1 ? at::Device(argv[1]) : at::Device(at::getAccelerator().value_or(at::kCPU)));
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "devices: " << error.what() << '\n';
    return 1;
  }
}
