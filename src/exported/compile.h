#pragma once
// Makes a program's graph ready to run, once: operators are looked up, arguments are checked against their schemas.
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "exported/plan.h"
#include "exported/program.h"

namespace tutti::exported {

/// What compiling has found out on its way.
struct CompileReport {
  std::map<std::string, std::int64_t> operators{};  ///< how many nodes each has, branches included
  std::set<std::string> missing{};                  ///< those that this program does not have
  std::set<std::string> eval_only{};                ///< dropout and batch norm that were exported in eval mode
  std::vector<std::string> modules{""};  ///< paths of the modules whose mode counts; Step::module is a place here
};

/// Throws CheckpointError naming the node for a graph that contradicts itself or the operators' schemas. Operators that
/// are missing are collected; then the plan must not be run.
std::shared_ptr<const Plan> compile_program(const Program& program, CompileReport& report);

/// Throws UsageError that names all of `report.missing`.
void require_operators(const CompileReport& report);

}  // namespace tutti::exported
