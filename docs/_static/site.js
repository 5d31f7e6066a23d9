// Names for what the theme leaves without: toggles in the sidebar, and regions that scroll, for those who use the keyboard.
document.addEventListener("DOMContentLoaded", () => {
  for (const toggle of document.querySelectorAll(".bd-sidebar-primary details > summary")) {
    const link = toggle.closest("li").querySelector("a");
    toggle.setAttribute("aria-label", "Pages of " + (link ? link.textContent.trim() : "this section"));
  }
  for (const region of document.querySelectorAll(".bd-article p:has(> img), .pst-scrollable-table-container, .cell_output pre")) {
    region.tabIndex = 0;
  }
});
