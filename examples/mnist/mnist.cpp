// A small convolutional network learns MNIST: plain.cpp with LibTorch alone on one process, mnist.cpp, its port to
// tutti, on any number of them.
#include <torch/torch.h>
#include <tutti/tutti.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <exception>
#include <iostream>
#include <sstream>
#include <string>

namespace {

struct Options {
  std::string data;
  std::int64_t batch_size = 64;
  int epochs = 3;
  double lr = 0.02;
};

struct NetImpl : torch::nn::Module {
  torch::Tensor forward(torch::Tensor x) {
    x = torch::max_pool2d(torch::relu(conv1(x)), 2);
    x = torch::max_pool2d(torch::relu(conv2(x)), 2);
    x = torch::relu(fc1(x.flatten(1)));
    return torch::log_softmax(fc2(x), 1);
  }

  torch::nn::Conv2d conv1 = register_module("conv1", torch::nn::Conv2d(1, 10, 5));
  torch::nn::Conv2d conv2 = register_module("conv2", torch::nn::Conv2d(10, 20, 5));
  torch::nn::Linear fc1 = register_module("fc1", torch::nn::Linear(320, 50));
  torch::nn::Linear fc2 = register_module("fc2", torch::nn::Linear(50, 10));
};
TORCH_MODULE(Net);

auto read(const std::string& folder, bool train) {
  return tutti::read_mnist(folder, {.train = train, .scaling = {.mean = {0.1307}, .std = {0.3081}}});
}

template <typename Loader, typename Optimizer>
void train(Net& net, Loader& loader, Optimizer& optimizer) {
  net->train();
  for (auto& batch : loader) {
    optimizer.zero_grad();
    const auto loss = torch::nll_loss(net(batch.data), batch.target);
    loss.backward();
    optimizer.step();
  }
}

/// The summed loss, how many were recognized, and how many there are.
template <typename Loader>
torch::Tensor test(Net& net, Loader& loader) {
  const torch::NoGradGuard no_grad;
  net->eval();
  const auto sums = torch::zeros({3}, torch::kDouble);
  for (auto& batch : loader) {
    const auto output = net(batch.data);
    sums[0] += torch::nll_loss(output, batch.target, {}, torch::Reduction::Sum);
    sums[1] += output.argmax(1).eq(batch.target).sum();
    sums[2] += batch.target.size(0);
  }
  return sums;
}

std::string describe(int epoch, const torch::Tensor& sums) {
  std::ostringstream text;
  text << "epoch " << epoch << ": test loss " << (sums[0] / sums[2]).item<double>() << ", " << sums[1].item<int>()
       << " of " << sums[2].item<int>() << " recognized";
  return text.str();
}

void run(const Options& options) {
  const auto& [folder, batch_size, epochs, lr] = options;
  tutti::Accelerator accelerator;
  torch::manual_seed(1);
  Net net;
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(lr).momentum(0.5));
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  auto train_loader = accelerator.data_loader(read(folder, true), {.batch_size = batch_size, .shuffle = true});
  auto test_loader = accelerator.data_loader(read(folder, false), {.batch_size = batch_size, .even_batches = false});
  for (int epoch = 1; epoch <= epochs; ++epoch) {
    train(model, train_loader, optimizer);
    accelerator.print(describe(epoch, accelerator.reduce(test(model, test_loader))));
  }
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Train a small network on MNIST");
  const CLI::Range count(1, 1'000'000, "POSITIVE");
  app.add_option("--data", options.data, "Folder with MNIST's four files, unpacked")->required();
  app.add_option("--batch-size", options.batch_size, "Samples in a process's batch")->check(count);
  app.add_option("--epochs", options.epochs, "Times that the data is seen")->check(count);
  app.add_option("--lr", options.lr, "Learning rate")->check(CLI::Range(0.0, 1e3, "NUMBER"));
  try {
    app.parse(argc, argv);
    run(options);
    return 0;
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help
    std::cerr << "mnist: " << error.what() << '\n';
    return 2;
  } catch (const std::exception& error) {
    const std::string message = error.what();
    std::cerr << "mnist: " << message.substr(0, message.find('\n')) << '\n';  // LibTorch appends a backtrace
    return 1;
  }
}
