#include "failures/work.h"

#include <ATen/ops/mse_loss.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <tutti/train/accelerator.h>
#include <tutti/train/local_sgd.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <tuple>

#include "support/temporary_folder.h"

namespace tutti::bench {
namespace {

constexpr int width = 32;

/// A folder that all ranks of this machine share. Rank 0 removes it.
class SharedFolder {
 public:
  explicit SharedFolder(const Communicator& communicator) {
    if (communicator.rank() == 0) folder_.emplace();
    path_ = communicator.broadcast_object(folder_ ? folder_->path().string() : "", 0);
  }

  const std::filesystem::path& path() const { return path_; }

 private:
  std::optional<test::TemporaryFolder> folder_{};
  std::filesystem::path path_{};
};

/// Trains a toy model.
class Training {
 public:
  Training(const std::string& name, const Communicator& communicator)
      : folder_(communicator),
        accelerator_(
            {.project = {.project_dir = folder_.path(), .retention = {.keep_last = 2}}, .communicator = communicator}),
        model_(torch::nn::Linear(width, 1)),
        optimizer_(std::get<1>(accelerator_.prepare(model_, torch::optim::SGD(model_->parameters(), 0.1)))),
        saves_(name == "checkpoints") {
    if (name == "local_sgd") local_sgd_.emplace(accelerator_, model_, LocalSGDOptions{.local_sgd_steps = 2});
  }

  void step() {
    at::mse_loss(model_->forward(at::randn({4, width})), at::randn({4, 1})).backward();
    optimizer_.step();
    optimizer_.zero_grad();
    if (local_sgd_) local_sgd_->step();
    if (saves_) accelerator_.save_state();
  }

 private:
  SharedFolder folder_;
  Accelerator accelerator_;
  torch::nn::Linear model_;
  Optimizer optimizer_;
  bool saves_;
  std::optional<LocalSGD> local_sgd_;
};

}  // namespace

std::function<void()> work_of(const std::string& name, const Communicator& communicator) {
  if (name == "collectives") return [communicator] { communicator.all_reduce(at::ones({4})).wait(); };
  const auto training = std::make_shared<Training>(name, communicator);
  return [training] { training->step(); };
}

}  // namespace tutti::bench
