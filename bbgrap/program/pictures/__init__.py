"""Pictures of timelines and plans as text: SVG, HTML and the trace format of Chrome and Perfetto. They need nothing but themselves."""
