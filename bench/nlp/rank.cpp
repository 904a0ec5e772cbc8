#include "nlp/rank.h"

#include <ATen/Parallel.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>
#include <filesystem>
#include <iostream>

#include "nlp/systems.h"
#include "sync/compare.h"
#include "tutti/exported/exported_module.h"

namespace tutti::bench {
namespace {

using Systems = std::vector<std::unique_ptr<System>>;

constexpr auto with_no_sync = {Mode::baseline, Mode::no_sync_misplaced, Mode::no_sync};
constexpr auto with_accumulate = {Mode::baseline, Mode::no_sync_misplaced, Mode::no_sync, Mode::accumulate};

/// The store of the Python processes, which rank 0 serves.
struct PeerGroup {
  c10::intrusive_ptr<c10d::TCPStore> server{};
  std::string command{};
};

PeerGroup make_peer_group(const Communicator& communicator, const Environment& environment) {
  PeerGroup peer_group;
  if (communicator.rank() == 0) {
    c10d::TCPStoreOptions options;
    options.isServer = true;
    options.waitWorkers = false;
    options.port = 0;
    peer_group.server = c10::make_intrusive<c10d::TCPStore>(environment.master_addr, options);
  }
  const auto port =
      communicator.broadcast_object(peer_group.server ? std::to_string(peer_group.server->getPort()) : "");
  peer_group.command = "join " + environment.master_addr + " " + port;
  return peer_group;
}

std::vector<std::string> python_command(const NlpOptions& options, const Environment& environment,
                                        const std::string& backend) {
  std::vector<std::string> command{options.python,
                                   script("nlp_peer.py"),
                                   "serve",
                                   options.folder,
                                   backend,
                                   std::to_string(environment.rank),
                                   std::to_string(environment.world_size),
                                   "--ranks",
                                   std::to_string(environment.world_size)};
  const auto shapes = model_arguments(options);
  command.insert(command.end(), shapes.begin(), shapes.end());
  return command;
}

Systems make_systems(const NlpContext& context, PythonPeer& gloo, PythonPeer& tutti) {
  Systems systems;
  systems.push_back(make_tutti_bert(context));
  systems.push_back(make_single_process_bert(context));
  const auto add = [&](PythonPeer& peer, PythonSystem system) {
    systems.push_back(make_python_bert(context, peer, std::move(system)));
  };
  add(gloo, {.name = "none in Python",
             .shown = "none in Python",
             .modes = {Mode::baseline},
             .tuned = false,
             .synchronizes = false});
  add(gloo, {.name = "PyTorch DDP", .shown = "PyTorch DDP over Gloo", .modes = with_no_sync, .tuned = true});
  add(gloo, {.name = "Accelerate", .shown = "Accelerate over Gloo", .modes = with_accumulate});
  add(tutti, {.name = "PyTorch DDP", .shown = "PyTorch DDP over tutti", .modes = with_no_sync, .tuned = true});
  add(tutti, {.name = "torch_tutti",
              .shown = "torch_tutti's DDP",
              .modes = {Mode::baseline, Mode::no_sync_misplaced, Mode::no_sync, Mode::automatic}});
  add(tutti, {.name = "Accelerate with torch_tutti",
              .shown = "Accelerate with torch_tutti's DDP",
              .modes = {Mode::no_sync_misplaced, Mode::no_sync, Mode::accumulate, Mode::automatic}});
  return systems;
}

}  // namespace

std::vector<std::string> model_arguments(const NlpOptions& options) {
  auto arguments = work_arguments(options, options.repeats);
  const auto repeats = std::ranges::find(arguments, "--repeats");
  arguments.erase(repeats, repeats + 2);
  return arguments;
}

int run_nlp_rank(const NlpOptions& options, const Environment& environment) {
  at::set_num_threads(1);
  PythonPeer gloo(python_command(options, environment, "gloo"));
  PythonPeer tutti(python_command(options, environment, "tutti"));

  const auto communicator = Communicator::connect(environment);
  const auto peer_group = make_peer_group(communicator, environment);
  const auto epochs = read_pairs(std::filesystem::path(options.folder) / "batches.safetensors", communicator.rank(),
                                 communicator.size(), options.batch_size, options.steps);
  const NlpContext context{options, epochs, communicator};
  for (PythonPeer* peer : {&gloo, &tutti}) peer->ask(peer_group.command);
  if (communicator.rank() == 0) std::cerr << "the Python processes are connected\n";

  const auto systems = make_systems(context, gloo, tutti);
  // PyTorch's DDP is the reference.
  System& reference = *systems[3];
  const auto start = copy_of(ExportedModule(context.program()).parameters());
  const bool whole_windows = options.batches % options.steps == 0;
  const auto results = compare(systems, reference, start, whole_windows, communicator, options.repeats);
  if (communicator.rank() == 0) write_results(options.results, results);

  for (PythonPeer* peer : {&gloo, &tutti}) peer->finish();
  communicator.barrier().wait();  // rank 0 may run the coordinator, so all ranks must finish first
  return 0;
}

}  // namespace tutti::bench
