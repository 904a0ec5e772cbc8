#include "training.h"

#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>
#include <tutti/train/accelerator.h>

#include <string>

double consumer_train() {
  tutti::Accelerator accelerator;
  torch::manual_seed(1);
  torch::nn::Linear net(4, 1);
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
  double loss = 0;
  for (int step = 0; step < 3; ++step) {
    const at::Tensor input = torch::ones({2, 4}) * (accelerator.rank() + 1);
    const at::Tensor error = model->forward(input).pow(2).mean();
    accelerator.backward(error);
    optimizer.step();
    optimizer.zero_grad();
    loss = error.item<double>();
  }
  accelerator.print("consumer: " + std::to_string(accelerator.num_processes()) + " ranks, loss " +
                    std::to_string(loss));
  return loss;
}
