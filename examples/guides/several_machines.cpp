// A job that survives a killed rank (docs/guides/several_machines.md). It saves checkpoints, names the failed rank, and
// resumes from the newest checkpoint when it is started again.
//
//   tutti launch -n 2 --max-restarts 1 -- guide_several_machines FOLDER         # trains
//   tutti launch -n 2 --max-restarts 1 -- guide_several_machines FOLDER 30      # rank 1 is killed after step 30, once
#include <ATen/Parallel.h>
#include <torch/nn/functional/loss.h>
#include <torch/optim/adamw.h>
#include <tutti/core/environment.h>
#include <tutti/core/error.h>
#include <tutti/train/accelerator.h>

#include <chrono>
#include <csignal>
#include <cstdint>
#include <exception>
#include <iostream>
#include <string>

#include "digest.h"
#include "guides/toy.h"

namespace {

constexpr std::int64_t last_step = 60;

void train(const std::string& folder, std::int64_t fails_after) {
  const auto environment = tutti::read_environment();
  tutti::Accelerator accelerator({.project = {.project_dir = folder, .retention = {.keep_last = 2}},
                                  // A blocked rank is named after a minute, not after half an hour.
                                  .communication = {.timeout = std::chrono::minutes(1)}});
  std::cout << "rank " << accelerator.rank() << " of " << accelerator.num_processes() << ", number "
            << accelerator.local_process_index() << " on node " << environment.node_rank << ", started by "
            << environment.launcher << ", attempt " << environment.restart_count << std::endl;
  auto loader = accelerator.data_loader(toy::Points(512), {.batch_size = 16, .shuffle = true});
  auto net = toy::make_net();
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::AdamW(net->parameters(), 1e-2));

  std::int64_t step = 0;
  if (const auto resumed = accelerator.load_latest_state()) {
    step = resumed->step;
    accelerator.print("goes on after step " + std::to_string(step));
  }
  while (step < last_step) {
    for (auto& batch : loader) {
      optimizer.zero_grad();
      accelerator.backward(torch::mse_loss(model->forward(batch.data), batch.target));
      optimizer.step();
      if (++step % 20 == 0) accelerator.save_state();
      if (step == fails_after && accelerator.rank() == 1 && environment.restart_count == 0) std::raise(SIGKILL);
      if (step == last_step) break;
    }
  }
  accelerator.print("digest " + digest(*model));
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc < 2) throw tutti::UsageError("missing argument: a folder that all machines share");
    at::set_num_threads(1);
    train(argv[1], argc > 2 ? std::stoll(argv[2]) : 0);
    return 0;
  } catch (const tutti::PeerError& failure) {  // another rank exited, left, or timed out
    std::cerr << "several_machines: ";
    for (const int rank : failure.ranks()) std::cerr << "rank " << rank << " failed; ";
    std::cerr << failure.what() << '\n';
    return 3;
  } catch (const std::exception& error) {
    std::cerr << "several_machines: " << error.what() << '\n';
    return 1;
  }
}
