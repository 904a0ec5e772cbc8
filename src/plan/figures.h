#pragma once
// Descriptions sent from the ranks that measured them to the process that started these.
#include <iosfwd>

#include "plan/description.h"

namespace tutti::plan {

void write(std::ostream& out, const Machine& machine);
void write(std::ostream& out, const Work& work);

/// They throw Error where that is no such description.
Machine read_machine(std::istream& in);
Work read_work(std::istream& in);

}  // namespace tutti::plan
