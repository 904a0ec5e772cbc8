#include "launch_command.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <string_view>
#include <system_error>

#include "command_line.h"
#include "core/launchers.h"
#include "tutti/core/environment.h"
#include "tutti/core/error.h"
#include "tutti/core/logging.h"
#include "tutti/detail/launch/launch_defaults.h"
#include "tutti/detail/launch/launch_hosts.h"
#include "tutti/launch/launch.h"

namespace tutti {
namespace {

constexpr double max_grace_seconds = 86'400;

/// torchrun's, Accelerate's and mpirun's spellings are tutti's too.
std::string own_spelling(const std::string& word) {
  if (!word.starts_with("--")) {
    const bool is_np = word.starts_with("-np") &&
                       std::all_of(word.begin() + 3, word.end(), [](unsigned char c) { return std::isdigit(c) != 0; });
    return is_np ? "-n" + word.substr(3) : word;
  }
  static const std::map<std::string, std::string> names{
      {"--np", "--nproc-per-node"},
      {"--num-machines", "--nnodes"},
      {"--machine-rank", "--node-rank"},
      {"--main-process-ip", "--master-addr"},
      {"--main-process-port", "--master-port"},
  };
  const auto end = std::min(word.find('='), word.size());
  std::string name = word.substr(0, end);
  std::replace(name.begin(), name.end(), '_', '-');
  const auto known = names.find(name);
  return (known == names.end() ? name : known->second) + word.substr(end);
}

/// Whether this option's value is the next word.
bool takes_next_word(const std::string& option) {
  constexpr std::array<std::string_view, 6> flags{"-h",           "--help",     "--announce-port", "--end-with-stdin",
                                                  "--standalone", "--no-python"};
  if (std::find(flags.begin(), flags.end(), option) != flags.end()) return false;
  const bool is_long = option.starts_with("--");
  return is_long ? option.find('=') == std::string::npos : option.size() == 2;
}

/// Throws UsageError for a folder, a device, a pipe and a file that is too long to be a list of hosts.
std::string content_of(const std::string& file) {
  constexpr std::size_t most_bytes = std::size_t{1} << 20;
  std::error_code error;
  const auto status = std::filesystem::status(file, error);
  if (!error && std::filesystem::exists(status) && !std::filesystem::is_regular_file(status)) {
    throw UsageError("--hostfile " + file +
                     " is not a regular file: name a file with a line HOST slots=N for each host");
  }
  std::ifstream stream(file, std::ios::binary);
  std::string content(most_bytes + 1, '\0');
  stream.read(content.data(), static_cast<std::streamsize>(content.size()));
  if (!stream.is_open() || stream.bad()) throw UsageError("cannot read --hostfile " + file + ": check the path");
  content.resize(static_cast<std::size_t>(stream.gcount()));
  if (content.size() > most_bytes) {
    throw UsageError("--hostfile " + file + " has more than " + std::to_string(most_bytes) +
                     " bytes: name a file with a line HOST slots=N for each host");
  }
  return content;
}

/// `srun -N 2 tutti launch -n 4`: without --nnodes two jobs write into the same folders.
void warn_of_jobs_beside(const LaunchOptions& options) {
  if (options.num_nodes > 1) return;
  Environment environment;
  try {
    environment = read_environment();
  } catch (const UsageError&) {
    return;  // variables that would not do for a rank do no harm to a launcher
  }
  if (environment.world_size == 1 || environment.launcher == "torchrun") return;
  Logger(0).warning(
      environment.launcher + " has started " + std::to_string(environment.world_size) +
      " launchers, and --nnodes is 1: each runs a job of its own. For one job, start one launcher on each "
      "node, with --nnodes, --node-rank and --master-addr, or the program itself without `tutti launch`");
}

}  // namespace

LaunchWords split_launch_words(const std::vector<std::string>& words) {
  auto word = words.begin();
  LaunchWords split;
  while (word != words.end() && *word != "--" && word->starts_with('-')) {
    const std::string option = own_spelling(*word);
    split.options.push_back(option);
    ++word;
    if (takes_next_word(option) && word != words.end() && *word != "--") split.options.push_back(*word++);
  }
  if (word != words.end() && *word == "--") ++word;
  split.command.assign(word, words.end());
  return split;
}

int run_launch_command(const std::vector<std::string>& words) {
  // CLI11 2.1 cannot be given the program's words: it reverses what follows `--`.
  auto [option_words, command] = split_launch_words(words);
  // Help must not fail because of a variable.
  const bool asks_for_help = std::find(option_words.begin(), option_words.end(), "--help") != option_words.end() ||
                             std::find(option_words.begin(), option_words.end(), "-h") != option_words.end();
  LaunchOptions options = asks_for_help ? LaunchOptions{} : launch_defaults(&process_variable);
  const bool names_no_master = options.num_nodes == 1 && !process_variable("PET_MASTER_ADDR");
  options.command = std::move(command);
  std::string log_dir;
  std::string hostfile;
  HostLaunchOptions on_hosts;
  std::uint16_t master_port = 0;
  double grace = 0;

  CLI::App app("Starts a program as N ranks on this node, watches them, and ends them all when one fails.");
  app.name("tutti launch");
  app.footer(
      "A PROGRAM without a slash is looked up in PATH, then next to tutti itself.\n"
      "Exit code: that of the rank that failed first (128 + signal if a signal ended it), or 0.\n"
      "Kubernetes' PET_NNODES, PET_NPROC_PER_NODE, PET_NODE_RANK, PET_MASTER_ADDR and PET_MASTER_PORT are defaults.\n"
      "With --max-restarts the last attempt decides; TORCHELASTIC_RESTART_COUNT tells ranks which one they are in.");
  auto* ranks_option = app.add_option("-n,--nproc-per-node", options.ranks_per_node,
                                      "Ranks on this node, or auto, gpu or cpu: one for each GPU or core")
                           ->capture_default_str();
  ranks_option->transform([&](const std::string& text) {
    return resolve_ranks(command_line::spelling(*ranks_option, option_words) + " " + text, text,
                         node_devices(&process_variable));
  });
  int all_ranks = 0;
  auto* all_ranks_option = app.add_option("--num-processes", all_ranks, "Ranks on all nodes together, instead of -n");
  auto* nodes_option = app.add_option("--nnodes", options.num_nodes, "Nodes in the job")->capture_default_str();
  nodes_option->transform([](const std::string& text) { return resolve_nodes("--nnodes " + text, text); });
  auto* node_option =
      app.add_option("--node-rank", options.node_rank, "Which node this is, from 0")->capture_default_str();
  auto* address_option =
      app.add_option("--master-addr", options.master_addr, "Address of node 0")->capture_default_str();
  auto* port_option = app.add_option("--master-port", master_port, "MASTER_PORT, free on node 0 [a free one]")
                          ->check(CLI::Range(1, 65535));
  app.add_option("--max-restarts", options.max_restarts,
                 "How often all ranks are started again after one failed; the same on all nodes")
      ->capture_default_str();
  auto* log_option = app.add_option("--log-dir", log_dir, "Also write what rank R prints to DIR/rank_R.log");
  auto* hostfile_option =
      app.add_option("--hostfile", hostfile, "Run on the hosts of this file, a line HOST slots=N each, through ssh");
  app.add_option("--ssh", on_hosts.ssh, "With --hostfile: what reaches a host")->capture_default_str();
  bool is_for_torchrun = false;
  app.add_flag("--standalone,--no-python", is_for_torchrun, "Accepted as torchrun's, without effect");
  // What one launcher asks of another.
  app.add_flag("--announce-port", options.announce_port)->group("");
  std::uint16_t coordinator_port = 0;
  auto* coordinator_option =
      app.add_option("--coordinator-port", coordinator_port)->check(CLI::Range(1, 65535))->group("");
  app.add_flag("--end-with-stdin", options.end_with_stdin)->group("");
  app.add_option("--restart-count", options.restart_count)->check(CLI::NonNegativeNumber)->group("");
  auto* grace_option = app.add_option("--grace", grace,
                                      "Seconds that ranks get to end: after a failure before SIGTERM and again before "
                                      "SIGKILL [5], after a signal to tutti before SIGKILL [30]")
                           ->check(CLI::Range(0.0, max_grace_seconds));

  if (!parse_command_line(app, option_words, "[OPTIONS] -- PROGRAM [ARGUMENTS...]")) return 0;
  if (all_ranks_option->count() > 0) {
    if (ranks_option->count() + hostfile_option->count() > 0) {
      throw UsageError("--num-processes counts the ranks of all nodes: leave it out where -n or --hostfile tells them");
    }
    if (options.num_nodes > 0 && all_ranks % options.num_nodes != 0) {
      throw UsageError("--num-processes " + std::to_string(all_ranks) + " ranks cannot be split evenly over --nnodes " +
                       std::to_string(options.num_nodes) + ": choose a multiple");
    }
    if (options.num_nodes > 0) options.ranks_per_node = all_ranks / options.num_nodes;
  }

  // 127.0.0.1 is a default for one node only: launch() asks for what several nodes need.
  if (options.num_nodes > 1 && address_option->count() == 0 && names_no_master) options.master_addr.clear();
  if (port_option->count() > 0) options.master_port = master_port;
  if (coordinator_option->count() > 0) options.coordinator_port = coordinator_port;
  if (log_option->count() > 0) options.log_dir = log_dir;
  if (grace_option->count() > 0) options.grace = std::chrono::milliseconds(std::llround(grace * 1000));
  if (hostfile_option->count() > 0) {
    if (nodes_option->count() + node_option->count() > 0) {
      throw UsageError("--nnodes and --node-rank follow from --hostfile: leave them out");
    }
    on_hosts.hosts = read_hostfile(hostfile, content_of(hostfile), options.ranks_per_node);
    if (const int slots = on_hosts.hosts.front().slots; slots != options.ranks_per_node && ranks_option->count() > 0) {
      throw UsageError("-n " + std::to_string(options.ranks_per_node) + " contradicts --hostfile " + hostfile +
                       ", where a host has " + std::to_string(slots) + " slots: leave -n out");
    }
    if (address_option->count() == 0) options.master_addr.clear();
    on_hosts.job = std::move(options);
    return launch_on_hosts(on_hosts);
  }
  warn_of_jobs_beside(options);
  return launch(options);
}

}  // namespace tutti
