#pragma once
// Compiles the graph of a program: resolves operators and checks arguments against their schemas.
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "exported/plan.h"
#include "exported/program.h"

namespace tutti::exported {

/// The findings of compile_program().
struct CompileReport {
  std::map<std::string, std::int64_t> operators{};  ///< number of nodes by operator, branches included
  std::set<std::string> missing{};                  ///< operators that are not registered in this process
  /// Nodes of dropout and batch norm that were exported in eval mode, with the paths of their modules.
  std::map<std::string, std::string> eval_only{};
  std::set<std::string> sync_batch_norms{};  ///< modules of the class SyncBatchNorm
  std::set<std::string> written_buffers{};   ///< buffers that the graph writes, except those of batch norm
  std::vector<std::string> modules{""};      ///< paths of modules with a mode; Step::module is an index
};

/// Throws CheckpointError naming the node if the graph contradicts itself or the schemas of the operators. Collects
/// missing operators in `report`; if there are any, the plan must not be run.
std::shared_ptr<const Plan> compile_program(const Program& program, CompileReport& report);

/// Throws UsageError naming all of `report.missing`, if any.
void require_operators(const CompileReport& report);

}  // namespace tutti::exported
