#include "checkpoint/agreement.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "checkpoint/damaged.h"
#include "core/describe.h"
#include "device/error_text.h"
#include "tutti/core/error.h"
#include "tutti/detail/comm/internal_call.h"

namespace tutti::checkpoint {
namespace {

// The first character of the text that each rank sends.
constexpr char success = 's';
constexpr char usage = 'u';
constexpr char damage = 'd';
constexpr char failure = 'f';

std::string run(const std::function<std::string()>& work) {
  try {
    return success + work();
  } catch (const UsageError& error) {
    return usage + std::string(error.what());
  } catch (const DamagedCheckpointError& error) {
    return damage + std::string(error.what());
  } catch (const std::exception& error) {
    return failure + error_text(error);
  }
}

}  // namespace

std::vector<std::string> on_all_ranks(const Communicator& communicator, const std::string& name,
                                      const std::function<std::string()>& work) {
  std::vector<std::string> results = communicator.all_gather_object(run(work), comm::internal_call(name));
  std::vector<std::pair<std::string, std::vector<int>>> errors;  // each text once, with its ranks
  bool only_usage = true;
  bool only_damage = true;
  for (std::size_t rank = 0; rank < results.size(); ++rank) {
    const char kind = results[rank].front();
    results[rank].erase(0, 1);
    if (kind == success) continue;
    only_usage = only_usage && kind == usage;
    only_damage = only_damage && kind == damage;
    auto error = std::ranges::find(errors, results[rank], [](const auto& known) { return known.first; });
    if (error == errors.end()) error = errors.insert(error, {results[rank], {}});
    error->second.push_back(static_cast<int>(rank));
  }
  if (errors.empty()) return results;
  std::string text;
  for (const auto& [error, ranks] : errors) text += (text.empty() ? "" : "; ") + describe_ranks(ranks) + ": " + error;
  if (only_usage) throw UsageError(text);
  if (only_damage) throw DamagedCheckpointError(text);
  throw CheckpointError(text);
}

}  // namespace tutti::checkpoint
