// Memory that a thread keeps from one call to the next: fresh pages may cost more than the work on them.
#pragma once

#include <cstddef>
#include <memory>

namespace mlxcel {

// Room for so many elements, not initialised. What was in it is lost at the next call for the same use; `Use` is any
// type that names one.
template <class Use, class Element>
Element* scratch(size_t count) {
  thread_local std::unique_ptr<Element[]> room;
  thread_local size_t size = 0;
  if (size < count) {
    room.reset();
    room = std::make_unique_for_overwrite<Element[]>(count);
    size = count;
  }
  return room.get();
}

}  // namespace mlxcel
