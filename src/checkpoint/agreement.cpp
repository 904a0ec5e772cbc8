#include "checkpoint/agreement.h"

#include <exception>

#include "checkpoint/damaged.h"
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
    return failure + std::string(error.what());
  }
}

}  // namespace

std::vector<std::string> on_all_ranks(const Communicator& communicator, const std::string& name,
                                      const std::function<std::string()>& work) {
  std::vector<std::string> results = communicator.all_gather_object(run(work), comm::internal_call(name));
  std::string errors;
  bool only_usage = true;
  bool only_damage = true;
  for (std::size_t rank = 0; rank < results.size(); ++rank) {
    const char kind = results[rank].front();
    results[rank].erase(0, 1);
    if (kind == success) continue;
    only_usage = only_usage && kind == usage;
    only_damage = only_damage && kind == damage;
    errors += (errors.empty() ? "rank " : "; rank ") + std::to_string(rank) + ": " + results[rank];
  }
  if (errors.empty()) return results;
  if (only_usage) throw UsageError(errors);
  if (only_damage) throw DamagedCheckpointError(errors);
  throw CheckpointError(errors);
}

}  // namespace tutti::checkpoint
