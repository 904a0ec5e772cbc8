#include "comm/engine/operation_here.h"

#include <utility>

namespace tutti::comm {

namespace {
thread_local const Operation* operation_of_this_thread = nullptr;
thread_local bool is_told_elsewhere = false;
}  // namespace

OperationHere::OperationHere(const Operation& operation)
    : before_(std::exchange(operation_of_this_thread, &operation)) {}

OperationHere::~OperationHere() {
  operation_of_this_thread = before_;
}

const Operation* OperationHere::now() {
  return operation_of_this_thread;
}

ToldElsewhere::ToldElsewhere(bool is_so) : before_(std::exchange(is_told_elsewhere, is_so || is_told_elsewhere)) {}

ToldElsewhere::~ToldElsewhere() {
  is_told_elsewhere = before_;
}

bool ToldElsewhere::now() {
  return is_told_elsewhere;
}

}  // namespace tutti::comm
