#include "launch/first_failure.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <set>

namespace tutti {
namespace {

struct Phrase {
  std::string_view text;
  bool timed_out;
};

// What messages say of failed ranks, after the ranks: see tests/launch/peer_errors_test.cpp.
constexpr std::array<Phrase, 18> endings{{{" exited", false},
                                          {" disconnected (", false},
                                          {" aborted ", false},
                                          {", which runs the coordinator, ", false},
                                          {" has been stopped for ", true},
                                          {" have been stopped for ", true},
                                          {" missed heartbeats for ", true},
                                          {" did not enter the call within ", true},
                                          {" did not join within ", true},
                                          {" could not read ", false},
                                          {" failed inside the scope", false},
                                          {" failed or left", false},
                                          {" failed to make its data loader", false},
                                          {" sent an invalid sparse gradient", false},
                                          {" announced a message of ", false},
                                          {" has left the group", false},
                                          {" stopped sending the message ", true},
                                          {" did not accept the message ", true}}};

// What messages say before the ranks.
constexpr std::array<Phrase, 7> beginnings{{{"no answer from ", false},
                                            {"could not connect to ", false},
                                            {"the sampler of ", false},
                                            {"was rejected on ", false},
                                            {" failed on ", false},
                                            {": on ", false},
                                            {"no message from ", true}}};

/// Removes " to 5" from the beginning of `text` and adds the numbers of this range behind the last of `numbers`.
void take_range(std::string_view& text, std::vector<int>& numbers) {
  constexpr std::string_view to = " to ";
  constexpr int longest = 1 << 20;  // the ranks of a job
  if (!text.starts_with(to) || numbers.back() < 0) return;
  int last = 0;
  const auto [end, error] = std::from_chars(text.data() + to.size(), text.data() + text.size(), last);
  if (error != std::errc{} || last < numbers.back() || last > longest) return;
  for (int number = numbers.back() + 1; number <= last; ++number) numbers.push_back(number);
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
}

/// Removes a list of numbers ("0, 1, 5", as describe_ranks() writes it) from the beginning of `text`.
std::vector<int> take_numbers(std::string_view& text) {
  std::vector<int> numbers;
  while (true) {
    int number = 0;
    const std::string_view rest = text.substr(numbers.empty() || !text.starts_with(", ") ? 0 : 2);
    const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), number);
    if (error != std::errc{} || (!numbers.empty() && rest.size() == text.size())) return numbers;
    numbers.push_back(number);
    text = rest.substr(static_cast<std::size_t>(end - rest.data()));
    take_range(text, numbers);
  }
}

/// Whether "rank 0: cannot write ..." behind `text` is an error that all ranks throw because of one.
bool comes_before_reason(std::string_view text) {
  const bool is_search = text.find("find_executable_batch_size with ") != std::string_view::npos;
  const bool is_connecting = text.find("Connecting over ") != std::string_view::npos;
  return text.empty() || text.ends_with("what():  ") || ((is_search || is_connecting) && text.ends_with(": "));
}

/// Removes what the launcher of a host prints before the line of a rank: "[rank 3] ", or "    " in its report.
std::string_view without_prefix(std::string_view line) {
  constexpr std::string_view indent = "    ";
  if (line.starts_with(indent)) line.remove_prefix(indent.size());
  const auto bracket = line.find("] ");
  const bool names_ranks = line.starts_with("[rank ") || line.starts_with("[ranks ");
  return names_ranks && bracket != std::string_view::npos ? line.substr(bracket + 2) : line;
}

class Search {
 public:
  explicit Search(const std::vector<ProcessEnd>& ends) : ends_(ends) {}

  const ProcessEnd& run() {
    first_exit_ = &*std::ranges::find(ends_, ProcessEnd::State::failed, &ProcessEnd::state);
    const auto* current = first_exit_;
    while (const auto* next = next_of(*current)) current = next;
    return *current;
  }

 private:
  const ProcessEnd* find(std::size_t process) const {
    const auto found = std::ranges::find(ends_, process, &ProcessEnd::process);
    return found == ends_.end() ? nullptr : &*found;
  }

  /// A process that was stopped fails when it continues, because its peers have left.
  static bool is_suspect(const ProcessEnd& end) {
    return end.state == ProcessEnd::State::failed ||
           (end.was_stopped && end.state == ProcessEnd::State::ended_by_launcher);
  }

  /// Whether `end` shows that this process, which the launcher has ended, had failed or called exec before. Errors of
  /// processes that failed later may be due to the launcher.
  bool had_left(const ProcessEnd& process, const ProcessEnd& end) const {
    return process.state == ProcessEnd::State::ended_by_launcher && &end == first_exit_ && !end.peers_were_late;
  }

  bool all_visited(const std::vector<std::size_t>& processes) const {
    return std::ranges::all_of(processes, [&](std::size_t process) { return visited_.contains(process); });
  }

  /// The process because of which `end` failed; nullptr if nothing shows another one.
  const ProcessEnd* next_of(const ProcessEnd& end) {
    visited_.insert(end.process);
    if (end.was_stopped) return nullptr;
    if (end.failed_peers.empty()) return end.has_failed_call ? without_failed_call() : nullptr;
    for (const std::size_t process : end.failed_peers) {
      const auto* next = find(process);
      if (next == nullptr || !(is_suspect(*next) || had_left(*next, end)) || visited_.contains(process)) continue;
      // Two processes that name each other say nothing, unless one was late.
      const bool names_back = !next->failed_peers.empty() && all_visited(next->failed_peers);
      if (names_back && !end.peers_were_late && !next->was_stopped) continue;
      return next;
    }
    return nullptr;
  }

  /// The first process that failed outside a call. Its own error is the reason for the failed calls of others.
  const ProcessEnd* without_failed_call() const {
    const auto found = std::ranges::find_if(ends_, [&](const ProcessEnd& end) {
      return is_suspect(end) && !visited_.contains(end.process) && end.failed_peers.empty() &&
             (end.was_stopped || !end.has_failed_call);
    });
    return found == ends_.end() ? nullptr : &*found;
  }

  const std::vector<ProcessEnd>& ends_;
  const ProcessEnd* first_exit_ = nullptr;  // of those that failed by themselves
  std::set<std::size_t> visited_;
};

}  // namespace

NamedFailure named_failure_in(std::string_view line) {
  line = without_prefix(line);
  NamedFailure before_reason;  // a program may begin its own lines with "rank 0: " too, so what follows counts more
  for (auto at = line.find("rank"); at != std::string_view::npos; at = line.find("rank", at + 1)) {
    std::string_view rest = line.substr(at + 4);
    if (rest.starts_with('s')) rest.remove_prefix(1);
    const bool is_in_word = at > 0 && std::isalnum(static_cast<unsigned char>(line[at - 1])) != 0;
    if (is_in_word || !rest.starts_with(' ')) continue;
    rest.remove_prefix(1);
    const bool is_self = rest.starts_with('(') && line.substr(0, at).ends_with("timed out waiting for this ");
    if (is_self) rest.remove_prefix(1);
    auto ranks = take_numbers(rest);
    if (ranks.empty()) continue;
    if (is_self) return {.ranks = std::move(ranks), .timed_out = true};
    const std::string_view before = line.substr(0, at);
    if (rest.starts_with(": ") && comes_before_reason(before)) {
      before_reason.ranks = std::move(ranks);
      continue;
    }
    const auto* phrase =
        std::ranges::find_if(beginnings, [&](const Phrase& one) { return before.ends_with(one.text); });
    if (phrase == beginnings.end()) {
      phrase = std::ranges::find_if(endings, [&](const Phrase& one) { return rest.starts_with(one.text); });
      if (phrase == endings.end()) continue;
    }
    return {.ranks = std::move(ranks), .timed_out = phrase->timed_out};
  }
  return before_reason;
}

FirstFailure find_first_failure(const std::vector<ProcessEnd>& ends) {
  const ProcessEnd& first = Search(ends).run();
  FirstFailure failure{.process = first.process, .completed_before = {}, .named_elsewhere = {}};
  bool before_any_failure = true;
  for (const ProcessEnd& end : ends) {
    before_any_failure = before_any_failure && end.state == ProcessEnd::State::completed;
    const bool is_named = std::ranges::find(first.failed_peers, end.process) != first.failed_peers.end();
    if (end.state == ProcessEnd::State::completed && (before_any_failure || is_named)) {
      failure.completed_before.push_back(end.process);
    }
  }
  for (const std::size_t peer : first.failed_peers) {
    const bool is_here = std::ranges::find(ends, peer, &ProcessEnd::process) != ends.end();
    if (!is_here && !first.was_stopped) failure.named_elsewhere.push_back(peer);
  }
  return failure;
}

}  // namespace tutti
