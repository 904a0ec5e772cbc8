#include "launch/remote_script.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <sstream>

#include "core/job_secret.h"
#include "core/variables.h"

namespace tutti {
namespace {

constexpr std::string_view announcement = "tutti: the coordinator listens on port ";
constexpr std::string_view beside = ", MASTER_PORT is ";

/// True for variables that the session on the other host sets itself.
bool belongs_to_login(std::string_view name) {
  constexpr std::array<std::string_view, 17> excluded{"_",    "DISPLAY", "HOME",   "HOSTNAME", "LOGNAME", "LS_COLORS",
                                                      "MAIL", "OLDPWD",  "PWD",    "SHELL",    "SHLVL",   "STY",
                                                      "TERM", "TMUX",    "TMPDIR", "TTY",      "USER"};
  constexpr std::array<std::string_view, 4> families{"SSH_", "XDG_", "DBUS_", "PET_"};
  return std::find(excluded.begin(), excluded.end(), name) != excluded.end() ||
         std::any_of(families.begin(), families.end(), [&](auto family) { return name.starts_with(family); });
}

/// True for variables that a shell sets for itself: some are readonly, some take only numbers, and a script that
/// assigns them ends.
bool belongs_to_shell(std::string_view name) {
  constexpr std::array<std::string_view, 24> excluded{
      "ARGC",   "BASHOPTS", "BASHPID", "BASH_VERSINFO", "EGID",    "EUID",   "FUNCNAME", "GID",
      "GROUPS", "HISTCMD",  "IFS",     "KSH_VERSION",   "LINENO",  "OPTARG", "OPTERR",   "OPTIND",
      "PPID",   "RANDOM",   "SECONDS", "SHELLOPTS",     "TTYIDLE", "UID",    "USERNAME", "ZSH_SUBSHELL"};
  return std::ranges::find(excluded, name) != excluded.end();
}

bool can_be_exported(std::string_view name) {
  const auto is_fine = [](unsigned char c) { return c == '_' || (c < 128 && std::isalnum(c) != 0); };
  return !name.empty() && std::isdigit(static_cast<unsigned char>(name.front())) == 0 &&
         std::all_of(name.begin(), name.end(), is_fine);
}

}  // namespace

std::string shell_quoted(std::string_view word) {
  std::string quoted = "'";
  for (const char character : word) {
    if (character == '\'') {
      quoted += "'\\''";
    } else {
      quoted += character;
    }
  }
  quoted += "'";
  return quoted;
}

std::string remote_script(const LaunchOptions& job, int node, const std::string& tutti, const std::string& folder,
                          const Variables& variables) {
  std::ostringstream script;
  script << "cd " << shell_quoted(folder) << " || exit 1\n";
  for (const auto& [name, value] : variables) {
    if (can_be_exported(name) && !belongs_to_login(name) && !belongs_to_shell(name)) {
      script << "export " << name << '=' << shell_quoted(value) << '\n';
    }
  }
  // The login on the host may set a secret file, but only one of the two variables may be set.
  if (variables.contains(secret_variable)) script << "unset " << secret_file_variable << '\n';
  script << "exec " << shell_quoted(tutti) << " launch --nnodes " << job.num_nodes << " --node-rank " << node << " -n "
         << job.ranks_per_node << " --master-addr " << shell_quoted(job.master_addr) << " --end-with-stdin";
  if (job.grace) script << " --grace " << static_cast<double>(job.grace->count()) / 1000;
  if (job.master_port) {
    script << " --master-port " << *job.master_port;
    if (job.coordinator_port) script << " --coordinator-port " << *job.coordinator_port;
  } else {
    script << " --announce-port";
  }
  if (job.max_restarts > 0) {
    script << " --max-restarts " << job.max_restarts << " --restart-count " << job.restart_count.value_or(0);
  }
  if (job.log_dir) script << " --log-dir " << shell_quoted(job.log_dir->string());
  script << " --";
  for (const auto& word : job.command) script << ' ' << shell_quoted(word);
  script << '\n';
  return script.str();
}

std::optional<JobPorts> announced_ports(std::string_view line) {
  if (!line.starts_with(announcement)) return std::nullopt;
  line.remove_prefix(announcement.size());
  const auto middle = line.find(beside);
  if (middle == std::string_view::npos) return std::nullopt;
  const auto coordinator = parse_port(line.substr(0, middle));
  const auto master = parse_port(line.substr(middle + beside.size()));
  return coordinator && master ? std::optional(JobPorts{.master = *master, .coordinator = *coordinator}) : std::nullopt;
}

std::string port_announcement(const JobPorts& ports) {
  return std::string(announcement) + std::to_string(ports.coordinator) + std::string(beside) +
         std::to_string(ports.master) + '\n';
}

}  // namespace tutti
