#include "exported/compile.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "exported/node_rules.h"
#include "exported/size_operators.h"
#include "exported/values.h"
#include "tutti/core/error.h"

namespace tutti::exported {
namespace {

using Kind = Argument::Kind;

/// Compiles one graph.
class Compiler {
 public:
  /// `origins` has the Python name of the buffer for each input that is a buffer, and an empty name for other inputs.
  /// `module` is the module of nodes without one.
  Compiler(const Graph& graph, CompileReport& report, std::vector<std::string> origins, std::string module)
      : graph_(graph), report_(report), origins_(std::move(origins)), module_(std::move(module)) {}

  std::shared_ptr<const Plan> run() {
    // A fixed input has a slot without a name.
    for (const Argument& input : graph_.inputs) new_slot(input.kind == Kind::name ? input : Argument{});
    plan_.inputs = plan_.slots;
    for (std::size_t i = 0; i < graph_.nodes.size(); ++i) {
      const Node& node = graph_.nodes[i];
      plan_.names.push_back(node.target);
      ++report_.operators[operator_name(node.target)];
      try {
        compile(node, static_cast<std::uint32_t>(i));
      } catch (const CheckpointError& error) {
        throw CheckpointError("node " + std::to_string(i) + " (" + node.target + "): " + error.what());
      }
    }
    for (const Argument& output : graph_.outputs) add_items(output, plan_.outputs);
    find_last_uses();
    return std::make_shared<const Plan>(std::move(plan_));
  }

 private:
  std::int32_t new_slot(const Argument& name) {
    const auto slot = static_cast<std::int32_t>(plan_.slots++);
    holds_number_.push_back(name.of_size);
    origins_.resize(std::max(origins_.size(), static_cast<std::size_t>(plan_.slots)));
    if (!name.text.empty() && !slots_.emplace(name.text, slot).second) {
      throw CheckpointError("the value '" + name.text + "' is defined twice");
    }
    return slot;
  }

  std::int32_t find(const Argument& name) const {
    const auto found = slots_.find(name.text);
    if (found == slots_.end()) throw CheckpointError("the value '" + name.text + "' is used before its definition");
    return found->second;
  }

  FindSlot finder() {
    return [this](const Argument& name) { return find(name); };
  }

  void add_items(const Argument& argument, std::vector<Operand>& items) {
    if (argument.kind != Kind::list) {
      items.push_back(compile_item(argument, finder()));
      return;
    }
    for (const Argument& item : argument.items) add_items(item, items);
  }

  void add_result_slots(const Argument& output, std::vector<ResultSlots>& result_slots) {
    if (output.kind == Kind::none) {
      result_slots.push_back({.slots = {-1}});
    } else if (output.kind == Kind::name) {
      result_slots.push_back(
          {.kind = output.of_size ? ResultSlots::Kind::number : ResultSlots::Kind::value, .slots = {new_slot(output)}});
    } else if (output.kind == Kind::list) {
      ResultSlots list{.kind = ResultSlots::Kind::list, .slots = {}};
      for (const Argument& item : output.items) list.slots.push_back(item.kind == Kind::name ? new_slot(item) : -1);
      result_slots.push_back(std::move(list));
    } else {
      throw CheckpointError("a result of the node has no name");
    }
  }

  void compile(const Node& node, std::uint32_t number) {
    if (is_check_of_the_export(node.target)) return;
    Step step;
    step.node = number;
    if (const auto op = size_operator(node.target)) {
      compile_size(node, *op, step);
    } else if (node.target.starts_with("torch.ops.higher_order.")) {
      compile_higher_order(node, step);
    } else {
      compile_call(node, step);
    }
    for (const Argument& output : node.outputs) add_result_slots(output, step.result_slots);
    if (step.kind == Step::Kind::call && step.op && step.result_slots.size() > step.op->schema().returns().size()) {
      throw CheckpointError("the node has more results than the operator returns");
    }
    if (step.kind == Step::Kind::call && step.op) follow_buffers(node, step);
    plan_.steps.push_back(std::move(step));
  }

  void compile_size(const Node& node, SizeOperator op, Step& step) {
    step.kind = Step::Kind::size;
    step.size_operator = op;
    for (const NamedArgument& input : node.inputs) step.operands.push_back(compile_item(input.value, finder()));
    if (step.operands.size() != size_operator_arity(op) || node.outputs.size() != 1) {
      throw CheckpointError("the node and the operator have different numbers of arguments");
    }
  }

  void compile_call(const Node& node, Step& step) {
    step.op = find_operator(node.target);
    if (!step.op) {
      report_.missing.insert(operator_name(node.target));
      return;
    }
    const auto& schema = step.op->schema();
    for (const NamedArgument& input : node.inputs) {
      if (!schema.argumentIndexWithName(input.name)) {
        throw CheckpointError("the operator of this LibTorch has no argument '" + input.name + "'");
      }
    }
    for (std::size_t i = 0; i < schema.arguments().size(); ++i) {
      const c10::Argument& wanted = schema.arguments()[i];
      const Argument* given = nullptr;
      for (const NamedArgument& input : node.inputs) {
        if (input.name == wanted.name()) given = &input.value;
      }
      step.arguments.push_back(compile_argument_of(node, wanted, given, step, i));
    }
    if (is_batch_norm(node)) {
      for (const char* name : {"training", "train"})
        if (const auto index = schema.argumentIndexWithName(name)) step.by_batch_statistics = *index;
      if (node.module_class.ends_with("SyncBatchNorm")) report_.sync_batch_norms.insert(path_of(node));
    }
    if (counts_batches(node)) step.only_in_training = true;
    if (step.only_in_training) step.module = module_of(node);
  }

  c10::IValue compile_argument_of(const Node& node, const c10::Argument& wanted, const Argument* given, Step& step,
                                  std::size_t position) {
    if (given == nullptr) {
      if (wanted.default_value()) return *wanted.default_value();
      if (wanted.type()->kind() == c10::TypeKind::OptionalType) return {};
      throw CheckpointError("the operator of this LibTorch needs the argument '" + wanted.name() +
                            "', which the node does not have");
    }
    if (given->kind == Kind::graph) throw CheckpointError("argument '" + wanted.name() + "' must not be a graph");
    Compiled compiled = compile_argument(*given, wanted, finder(), [this](std::int32_t slot) {
      return slot >= 0 && holds_number_[static_cast<std::size_t>(slot)];
    });
    if (compiled.dynamic_argument) {
      compiled.dynamic_argument->position = static_cast<std::uint32_t>(position);
      step.dynamic_arguments.push_back(std::move(*compiled.dynamic_argument));
      return {};
    }
    const ModeRule rule = mode_rule(node, wanted.name(), compiled.constant);
    if (rule.eval_only) {
      const std::string& path = path_of(node);
      report_.eval_only.emplace(operator_name(node.target) + (path.empty() ? "" : " in " + path), path);
    }
    if (!rule.evaluation) return compiled.constant;
    step.module = module_of(node);
    step.dynamic_arguments.push_back({.position = static_cast<std::uint32_t>(position),
                                      .conversion = Conversion::mode,
                                      .items = {{.slot = -1, .last = false, .constant = compiled.constant}},
                                      .evaluation = *rule.evaluation});
    return {};
  }

  // Batch norm increments its batch counter in a separate node.
  bool counts_batches(const Node& node) const {
    if (node.target != "torch.ops.aten.add_.Tensor" || node.inputs.empty()) return false;
    const Argument& self = node.inputs.front().value;
    const auto slot = self.kind == Kind::name ? slots_.find(self.text) : slots_.end();
    return slot != slots_.end() && is_batch_counter(origin_of(slot->second));
  }

  const std::string& origin_of(std::int32_t slot) const { return origins_[static_cast<std::size_t>(slot)]; }

  // Reports buffers that the node writes. A result that shares memory with a buffer has the buffer's name as its
  // origin.
  void follow_buffers(const Node& node, const Step& step) {
    const auto& schema = step.op->schema();
    std::string shared;
    for (const NamedArgument& input : node.inputs) {
      const c10::AliasInfo* alias = schema.arguments()[*schema.argumentIndexWithName(input.name)].alias_info();
      if (alias == nullptr || input.value.kind != Kind::name) continue;
      const std::string& origin = origin_of(find(input.value));
      if (origin.empty()) continue;
      shared = origin;
      if (alias->isWrite() && !is_batch_norm(node) && !is_batch_counter(shared)) report_.written_buffers.insert(shared);
    }
    for (std::size_t i = 0; i < step.result_slots.size(); ++i) {
      if (schema.returns()[i].alias_info() == nullptr) continue;
      for (const std::int32_t slot : step.result_slots[i].slots) {
        if (slot >= 0) origins_[static_cast<std::size_t>(slot)] = shared;
      }
    }
  }

  const std::string& path_of(const Node& node) const { return node.module ? *node.module : module_; }

  std::int32_t module_of(const Node& node) {
    auto& modules = report_.modules;
    const auto place = std::find(modules.begin(), modules.end(), path_of(node)) - modules.begin();
    if (place == std::ssize(modules)) modules.push_back(path_of(node));
    return static_cast<std::int32_t>(place);
  }

  void compile_higher_order(const Node& node, Step& step) {
    std::vector<const Argument*> graphs;
    for (const NamedArgument& input : node.inputs) {
      if (input.value.kind == Kind::graph) {
        graphs.push_back(&input.value);
      } else if (graphs.empty() && step.operands.empty() && node.target != "torch.ops.higher_order.cond") {
        // Constants before the graph: autocast's device, dtype and switches, or whether gradients are on.
        step.arguments.push_back(compile_item(input.value, finder()).constant);
      } else {
        add_items(input.value, step.operands);
      }
    }
    const auto wants = [&](Step::Kind kind, std::size_t arguments, std::size_t number_of_graphs) {
      step.kind = kind;
      if (step.arguments.size() != arguments || graphs.size() != number_of_graphs) {
        throw CheckpointError("the node and the operator have different numbers of arguments");
      }
    };
    if (node.target == "torch.ops.higher_order.cond") {
      wants(Step::Kind::cond, 0, 2);
      if (step.operands.empty()) throw CheckpointError("cond has no condition");
    } else if (node.target == "torch.ops.higher_order.wrap_with_autocast") {
      wants(Step::Kind::autocast, 4, 1);
      check_autocast(node, step.arguments);
    } else if (node.target == "torch.ops.higher_order.wrap_with_set_grad_enabled") {
      wants(Step::Kind::grad_mode, 1, 1);
      if (!step.arguments[0].isBool())
        throw CheckpointError("the first argument is not a boolean (gradients on or off)");
    } else {
      report_.missing.insert(operator_name(node.target));
      return;
    }
    compile_graphs(node, graphs, step);
  }

  void compile_graphs(const Node& node, const std::vector<const Argument*>& graphs, Step& step) {
    const std::size_t first = step.kind == Step::Kind::cond ? 1 : 0;
    std::vector<std::string> origins;
    for (std::size_t i = first; i < step.operands.size(); ++i) {
      origins.push_back(step.operands[i].slot >= 0 ? origin_of(step.operands[i].slot) : "");
    }
    std::size_t results = 0;
    for (const Argument& output : node.outputs) results += output.kind == Kind::list ? output.items.size() : 1;
    for (const Argument* graph : graphs) {
      if (graph->graph->inputs.size() != origins.size()) {
        throw CheckpointError("the inner graph takes " + std::to_string(graph->graph->inputs.size()) +
                              " inputs, but the node has " + std::to_string(origins.size()));
      }
      step.graphs.push_back(Compiler(*graph->graph, report_, origins, path_of(node)).run());
      if (step.graphs.back()->outputs.size() != results) {
        throw CheckpointError("the inner graph returns " + std::to_string(step.graphs.back()->outputs.size()) +
                              " values, but the node has " + std::to_string(results));
      }
    }
  }

  // Visits the steps in reverse order, so the first read found is the last one. A value that is never read is not
  // stored.
  void find_last_uses() {
    std::vector<bool> read(plan_.slots, false);
    const auto visit = [&](std::vector<Operand>& items) {
      for (auto item = items.rbegin(); item != items.rend(); ++item) {
        if (item->slot < 0) continue;
        const auto slot = static_cast<std::size_t>(item->slot);
        item->last = !read[slot];
        read[slot] = true;
      }
    };
    visit(plan_.outputs);
    for (auto step = plan_.steps.rbegin(); step != plan_.steps.rend(); ++step) {
      for (ResultSlots& target : step->result_slots) {
        bool wanted = false;
        for (std::int32_t& slot : target.slots) {
          if (slot >= 0 && !read[static_cast<std::size_t>(slot)]) slot = -1;
          wanted = wanted || slot >= 0;
        }
        if (!wanted) target.kind = ResultSlots::Kind::ignored;
      }
      visit(step->operands);
      for (auto dynamic_argument = step->dynamic_arguments.rbegin(); dynamic_argument != step->dynamic_arguments.rend();
           ++dynamic_argument)
        visit(dynamic_argument->items);
    }
  }

  const Graph& graph_;
  CompileReport& report_;
  std::vector<std::string> origins_;  // by slot
  std::string module_;
  std::map<std::string, std::int32_t> slots_{};
  std::vector<bool> holds_number_{};
  Plan plan_{};
};

bool is_result_of_batch_norm(const Graph& graph, const std::string& name) {
  return std::ranges::any_of(graph.nodes, [&name](const Node& node) {
    return is_batch_norm(node) &&
           std::ranges::any_of(node.outputs, [&name](const Argument& output) { return output.text == name; });
  });
}

}  // namespace

std::shared_ptr<const Plan> compile_program(const Program& program, CompileReport& report) {
  std::vector<std::string> origins;
  for (std::size_t i = 0; i < program.inputs.size(); ++i) {
    const Input& input = program.inputs[i];
    const Argument& placeholder = program.graph.inputs[i];
    if (input.kind != Input::Kind::fixed && (placeholder.kind != Kind::name || placeholder.text != input.value.text)) {
      throw CheckpointError("the program's signature and its graph name input " + std::to_string(i) + " differently");
    }
    origins.push_back(input.kind == Input::Kind::buffer ? input.target : "");
  }
  auto plan = Compiler(program.graph, report, std::move(origins), {}).run();
  for (const Output& output : program.outputs) {
    if (output.kind != Output::Kind::buffer_mutation || is_batch_counter(output.target)) continue;
    if (!is_result_of_batch_norm(program.graph, output.value.text)) report.written_buffers.insert(output.target);
  }
  return plan;
}

void require_operators(const CompileReport& report) {
  if (report.missing.empty()) return;
  std::string names;
  for (const std::string& name : report.missing) names += (names.empty() ? "" : ", ") + name;
  throw UsageError("this process has no operators " + names +
                   ": link or load the library that defines them before the model (operators written in Python, and "
                   "higher-order operators other than cond, autocast and no_grad, cannot run)");
}

}  // namespace tutti::exported
