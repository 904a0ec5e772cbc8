#pragma once
// Sends measurements from the ranks to the process that started them.
#include <iosfwd>

#include "plan/description.h"

namespace tutti::plan {

void write(std::ostream& out, const Machine& machine);
void write(std::ostream& out, const Work& work);

/// Throw Error if `in` holds no such measurements.
Machine read_machine(std::istream& in);
Work read_work(std::istream& in);

}  // namespace tutti::plan
